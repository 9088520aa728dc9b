"""Progress of a run: how many sessions wait and are in each stage, how fast the model is, how long it may take.

A terminal shows it as a bar with a line below. Elsewhere a line is printed every few seconds. A session that has
ended gets a line of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import typer

from polar.cli.output import error_console, number, one_line, progress_bar
from polar.types import SessionResult, Stage, TaskRequest, TaskStatus

if TYPE_CHECKING:
    from rich.status import Status

    from polar.runs.running import CallCounts

EXIT_FAILED_SESSIONS = 1
EXIT_INTERRUPTED = 130
LIVE_STAGES = (Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)
FIRST_PAUSE_S = 5.0
"""Between two lines where there is no terminal. It grows with the time that the run has taken."""
LONGEST_PAUSE_S = 60.0
WINDOW_S = 60.0
"""Over which the model's speed is measured."""
REASON_LENGTH = 300
"""Characters of a reason in the line of a session. One of infrastructure has its cause at the end."""


class PhasedBar:
    """A progress bar on stderr, so that stdout holds only the outcome. Until it begins, a line says what is being
    set up. Without a terminal there is no bar, and `words` are printed every few seconds."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = error_console(quiet=quiet)
        self._quiet = quiet
        self._status: Status | None = None
        self._bar = progress_bar(self.console)
        self._ticking: threading.Thread | None = None
        self._end = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._ticking is not None:
            self._ticking.join()
        if self.console.is_terminal:
            self._bar.stop()
        if self._status is not None:
            self._status.stop()

    def words(self) -> str:
        """The progress as one line; empty: nothing to say."""
        return ""

    def phase(self, what: str) -> None:
        """Empty: all is set up."""
        if self._status is not None:
            self._status.stop()
        if self.console.is_terminal:
            self._show_phase(what)
        elif what:
            self.console.print(f"{what} ...")
        elif self._ticking is None and not self._quiet:
            self._ticking = threading.Thread(target=self._tick, name="polar-progress", daemon=True)
            self._ticking.start()

    def _show_phase(self, what: str) -> None:
        if not what:
            self._bar.start()
            return
        self._status = self.console.status(what)
        self._status.start()

    def _tick(self) -> None:
        began = time.monotonic()
        pause_s = FIRST_PAUSE_S
        while not self._end.wait(pause_s):
            if words := self.words():
                self.console.print(words)
            pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, (time.monotonic() - began) / 20))


class RunProgress(PhasedBar):
    """A `RunObserver` and a `CallsFollower`."""

    def __init__(
        self,
        tasks: Sequence[TaskRequest | TaskStatus],
        *,
        quiet: bool = False,
        earlier: Sequence[SessionResult] = (),
    ) -> None:
        """`earlier`: results that a run which goes on has already."""
        super().__init__(quiet=quiet)
        self._tasks = tasks
        self._results = list(earlier)
        self._earlier = len(earlier)
        self._stage_of: dict[str, Stage] = {}
        """Of the sessions that are in one of the live stages."""
        self._total = sum(task.num_samples for task in tasks)
        self._began = time.monotonic()
        self._speed = SpeedMeter()
        self._counts: Callable[[], CallCounts] | None = None
        self.waits = ""
        """Why a rollout server has given no node the next session; shown while none is under way."""
        self._outage = ""
        self._task = self._bar.add_task("", total=self._total, completed=len(earlier), below=self._state)

    @property
    def results(self) -> list[SessionResult]:
        """Those that came, in the order of the tasks."""
        came = {result.task_id for result in self._results}
        order = {task.task_id: position for position, task in enumerate(self._tasks) if task.task_id in came}
        return sorted(self._results, key=lambda result: (order[result.task_id], result.index))

    def phase(self, what: str) -> None:
        if not what:
            self._began = time.monotonic()
        super().phase(what)

    def follow(self, counts: Callable[[], CallCounts]) -> None:
        """Calls are counted while sessions run. Else only those of finished sessions are known."""
        self._counts = counts

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        if stage in LIVE_STAGES:
            self._stage_of[session_id] = stage
        else:
            self._stage_of.pop(session_id, None)

    def note_outage(self, why: str) -> None:
        """`why`: nothing is known of the sessions at a rollout server; empty: it answers. A change is printed."""
        if bool(why) != bool(self._outage):
            self.console.print(why or "the server answers again", style="yellow")
        self._outage = why

    def finished(self, result: SessionResult) -> None:
        self._results.append(result)
        self._bar.advance(self._task)
        self.console.print(_line(result), style=None if result.failure is None else "yellow")

    def end(self, interrupted: str) -> None:
        """Exits with the code for how the sessions went. `interrupted`: what to say if the user ended it early."""
        if interrupted:
            self.console.print(interrupted, style="yellow")
            raise typer.Exit(EXIT_INTERRUPTED)
        if any(result.failed_by_infrastructure for result in self._results):
            raise typer.Exit(EXIT_FAILED_SESSIONS)

    def words(self) -> str:
        return f"{len(self._results)}/{self._total} done  {self._state()}"

    def _state(self) -> str:
        if self._outage:
            return one_line(self._outage, REASON_LENGTH)
        waits = f"waits: {self.waits}" if self.waits and not self._stage_of else ""
        return "  ".join(filter(None, (self._stages(), self._pace(), self._left(), one_line(waits, 200))))

    def _stages(self) -> str:
        """Without stages that no session is in. A session of which nothing is known yet waits."""
        live = list(self._stage_of.values())  # a copy: another thread changes them
        count = Counter(live)
        count[Stage.QUEUED] = max(0, self._total - len(self._results) - len(live))
        return "  ".join(f"{stage.value} {count[stage]}" for stage in (Stage.QUEUED, *LIVE_STAGES) if count[stage])

    def _pace(self) -> str:
        here = self._results[self._earlier :]
        if self._counts is not None:
            calls, tokens, generating = self._counts()
            speed = self._speed.tokens_s(tokens)
        else:
            calls, generating = sum(result.statistics.calls for result in here), None
            tokens = sum(result.statistics.sampled_tokens for result in here)
            speed = tokens / max(1e-9, time.monotonic() - self._began) if tokens else None
        words = [f"{calls} {'call' if calls == 1 else 'calls'}"]
        words += [f"{generating} generating"] if generating else []
        return "  ".join([*words, *([f"{speed:.0f} tokens/s"] if speed is not None else [])])

    def _left(self) -> str:
        """From the pace so far; empty: no session has ended here."""
        done = len(self._results) - self._earlier
        if not done:
            return ""
        left_s = (time.monotonic() - self._began) / done * (self._total - self._earlier - done)
        return f"about {duration(left_s)} left" if left_s else ""


class SpeedMeter:
    """Tokens per second over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen = deque([(clock(), 0)])

    def tokens_s(self, tokens: int) -> float | None:
        """`tokens`: all so far. None: there are none yet."""
        now = self._clock()
        while len(self._seen) > 1 and self._seen[1][0] < now - WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, tokens))
        since, before = self._seen[0]
        return (tokens - before) / (now - since) if tokens and now > since else None


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def _line(result: SessionResult) -> str:
    statistics = result.statistics
    parts = [
        f"{result.session_id:<12}",
        f"{result.stage.value:<9}",
        f"reward {number(result.reward, 2)}",
        f"{statistics.calls} {'call' if statistics.calls == 1 else 'calls'}",
        f"{statistics.trainable_tokens} trainable tokens",
        f"{sum(result.stage_s.get(s.value, 0.0) for s in LIVE_STAGES):.1f} s",
    ]
    if result.ended_by:
        parts.append(f"ended by {result.ended_by}")
    if result.cancel_reason:
        parts.append(one_line(result.cancel_reason, REASON_LENGTH))
    if result.failure is not None:
        parts.append(one_line(f"{result.failure.where}: {result.failure.message}", REASON_LENGTH))
    return "  ".join(parts)
