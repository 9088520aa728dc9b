"""The data card: what was tried, what was confirmed and what the data set holds."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polar import __version__
from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.split import Side
from polar.types import SessionResult, Strict, TaskRequest


class Spread(Strict):
    """Of a number that each confirmed session has."""

    mean: float
    p50: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Spread | None:
        """None: there are no values. p90 is the smallest value that nine of ten do not exceed."""
        if not values:
            return None
        ordered = sorted(values)
        p90 = ordered[math.ceil(0.9 * len(ordered)) - 1]
        return cls(mean=round(statistics.fmean(values), 2), p50=statistics.median(values), p90=p90)


class Tally(Strict):
    """Of some tasks."""

    tasks: int
    attempts: int
    """Sessions that an agent ended, well or not."""
    accepted: int
    """Of these: confirmed, exact and trainable."""
    rate: float | None
    """`accepted / attempts`; None without attempts."""
    failed: int
    """Sessions that failed through infrastructure, beside the attempts."""

    @classmethod
    def of(cls, accounts: Iterable[TaskAttempts]) -> Tally:
        every = list(accounts)
        attempts, accepted = sum(each.attempts for each in every), sum(each.accepted for each in every)
        return cls(
            tasks=len(every),
            attempts=attempts,
            accepted=accepted,
            rate=round(accepted / attempts, 4) if attempts else None,
            failed=sum(each.failed for each in every),
        )


class RepositoryTally(Strict):
    repository: str
    split: str
    """`train` or `test`; empty: none of its sessions is in the data."""
    tally: Tally


class SplitTally(Strict):
    repositories: int
    sessions: int
    """Confirmed ones that do not only repeat others."""
    share: float | None
    """Of the sessions of both splits."""
    rows: dict[str, int]
    """By format."""
    left_out: dict[str, dict[str, int]] = {}
    """By format: traces of confirmed sessions that are in no row, by reason."""


class DataCard(Strict):
    """The content of `card.json`."""

    command: str
    polar: str = __version__
    run_id: str
    task_set: str = ""
    """Of tasks from a git repository: its address with the commit."""
    plan: dict[str, Any]
    complete: bool
    """False: the run was interrupted, and running it again continues it."""
    all: Tally
    tasks_solved: int
    """With at least one confirmed session."""
    repositories: tuple[RepositoryTally, ...]
    splits: dict[str, SplitTally]
    repeated: dict[str, int]
    """Traces that were left out because an earlier one is equal, by what is equal."""
    turns: Spread | None
    """Model calls of a confirmed session."""
    sampled_tokens: Spread | None
    """Tokens with a loss."""
    tokens: Spread | None
    """All tokens of its traces."""
    harnesses: dict[str, int]
    """Confirmed sessions by harness and version, and so on."""
    models: dict[str, int]
    engines: dict[str, int]
    polars: dict[str, int]
    evaluators: dict[str, int]


def by_repository(accounts: Sequence[TaskAttempts], side_of: Mapping[str, Side]) -> tuple[RepositoryTally, ...]:
    members = defaultdict[str, list[TaskAttempts]](list)
    for account in accounts:
        members[account.repository].append(account)
    return tuple(
        RepositoryTally(repository=name, split=side_of.get(name, ""), tally=Tally.of(members[name]))
        for name in sorted(members)
    )


class SessionFacts:
    """Facts of the confirmed sessions, while they are read one by one."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.sampled_tokens: list[int] = []
        self.tokens: list[int] = []
        self.versions = defaultdict[str, Counter[str]](Counter)

    def add(self, task: TaskRequest, result: SessionResult, tokens: int) -> None:
        self.turns.append(result.statistics.calls)
        self.sampled_tokens.append(result.statistics.trainable_tokens)
        self.tokens.append(tokens)
        versions = result.versions
        harness = versions.get("harness", "")
        name = task.harness.name
        self.versions["harness"][harness if harness.startswith(name) else f"{name} {harness}".strip()] += 1
        self.versions["evaluator"][task.evaluator.name] += 1
        for part in ("model", "engine", "polar"):
            self.versions[part][versions.get(part, "unknown")] += 1

    def counted(self, part: str) -> dict[str, int]:
        return dict(self.versions[part].most_common())
