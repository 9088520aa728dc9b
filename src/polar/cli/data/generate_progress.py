"""Progress of a generation: attempts, confirmed sessions, their rate, and how long it may still take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from polar.cli.output import number, one_line
from polar.cli.runs.progress import LIVE_STAGES, PhasedBar, duration
from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.plan import GeneratePlan, Outcome
from polar.types import SessionResult, Stage


class GenerateProgress(PhasedBar):
    """A `GenerateObserver`."""

    def __init__(self, accounts: Sequence[TaskAttempts], plan: GeneratePlan, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._accounts = accounts
        self._plan = plan
        self._live: set[str] = set()
        self._ended_here = 0
        self._count = Counter[str]()
        self._began = time.monotonic()
        for account in accounts:
            self._count.update({"accepted": account.accepted, "attempts": account.attempts, "done": account.done})
        self._task = self._bar.add_task(self._described(), total=len(accounts), completed=self._count["done"])

    def __enter__(self) -> Self:
        if self._count["attempts"]:
            kept = f"{self._count['attempts']} attempts and {self._count['accepted']} confirmed sessions"
            self.console.print(f"continuing: the folder has {kept} already")
        return self

    def phase(self, what: str) -> None:
        super().phase(what)
        self._began = time.monotonic()

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        (self._live.add if stage in LIVE_STAGES else self._live.discard)(session_id)
        self._bar.update(self._task, description=self._described())

    def judged(self, result: SessionResult, outcome: Outcome) -> None:
        if outcome in ("accepted", "rejected"):
            self._ended_here += 1
            self._count.update({"accepted": outcome == "accepted", "attempts": 1})
        done = sum(account.done for account in self._accounts)
        self._bar.update(self._task, completed=done, description=self._described())
        style = {"accepted": "green", "rejected": None}.get(outcome, "yellow")
        self.console.print(_line(result, outcome), style=style, soft_wrap=True)

    def words(self) -> str:
        return f"{self._described()} {self._count['done']}/{len(self._accounts)}"

    def _described(self) -> str:
        attempts, accepted = self._count["attempts"], self._count["accepted"]
        rate = f" ({100 * accepted / attempts:.0f}%)" if attempts else ""
        left = self.seconds_left()
        eta = "" if left is None else f"  about {duration(left)} left"
        return f"{len(self._live)} live  {attempts} attempts  {accepted} accepted{rate}{eta}  tasks"

    def seconds_left(self) -> float | None:
        """From the rate and the pace so far. None: no session has ended here."""
        if not self._ended_here:
            return None
        rate = self._count["accepted"] / self._count["attempts"]
        pace = (time.monotonic() - self._began) / self._ended_here
        return pace * expected_attempts(self._accounts, self._plan, rate)


def expected_attempts(accounts: Sequence[TaskAttempts], plan: GeneratePlan, rate: float) -> float:
    """How many the open tasks will still take, if each succeeds at this rate."""
    expected = 0.0
    for account in accounts:
        if not account.done:
            most = plan.attempts - account.attempts
            expected += most if not rate else min(most, (plan.wanted - account.accepted) / rate)
    return expected


def _line(result: SessionResult, outcome: Outcome) -> str:
    parts = [
        f"{result.session_id:<16}",
        f"{outcome:<8}",
        f"reward {number(result.reward, 2)}",
        f"{result.statistics.calls} calls",
        f"{result.statistics.trainable_tokens} trainable tokens",
    ]
    if outcome == "rejected" and result.untrainable_reason:
        parts.append(result.untrainable_reason)
    if result.failure is not None:
        parts.append(one_line(f"{result.failure.where}: {result.failure.message}", 90))
    return "  ".join(parts)
