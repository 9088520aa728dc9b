"""What an export is made from, and what it shall hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from polar.credit.advantages import Estimator
from polar.errors import ConfigError
from polar.types import Call, SessionResult, TaskRequest, Trajectory

ExportFormat = Literal["sft", "tokens", "parquet", "atif", "jsonl"]
FileType = Literal["jsonl", "parquet"]

WITH_MESSAGES: frozenset[ExportFormat] = frozenset({"sft", "parquet", "atif"})
IMITATED: frozenset[ExportFormat] = frozenset({"sft", "tokens"})
"""Formats whose rows a model learns to repeat: by default only sessions with the full reward go in."""
SOLVED = 1.0


class ExportedSession(NamedTuple):
    """A session that has ended, as it was stored."""

    task: TaskRequest
    result: SessionResult
    trajectory: Trajectory | None
    """None: it has no traces."""
    calls: tuple[Call, ...] = ()
    """Parents before children; empty if the plan does not need them."""
    problem: str = ""
    """Why its traces cannot be read; then there are none."""


class ExportedGroup(NamedTuple):
    """The sessions whose rewards are compared. A source gives one group at a time."""

    group_id: str
    sessions: tuple[ExportedSession, ...]
    """Those that have ended."""
    unfinished: int = 0
    """The others. Until they have ended, no session of the group has an advantage."""


@dataclass(frozen=True)
class ExportPlan:
    to: ExportFormat
    min_reward: float | None = None
    """Leaves out traces with a lower reward. None: 1.0 for formats that a model imitates, else no bound."""
    allow_inexact: bool = False
    """Also traces whose context is not what the engine had."""
    untrainable: bool = False
    """Also sessions that may not be trained on."""
    estimator: Estimator = "grpo"
    pairs: bool = False
    """Preference pairs instead of single rows."""
    file: FileType = "jsonl"
    """Of `tokens`; the other formats have their own."""
    object_arguments: bool = False
    """In chat form: arguments of tool calls as objects instead of JSON text."""
    task_ids: frozenset[str] = frozenset()
    """With neither these nor `group_ids`: all."""
    group_ids: frozenset[str] = frozenset()
    repeated: frozenset[tuple[str, int]] = frozenset()
    """Traces that repeat others and are left out: session id, and number in the trajectory."""
    split: str = "train"
    """Names the files."""
    shard_rows: int = 100_000
    shard_bytes: int = 500_000_000

    def __post_init__(self) -> None:
        if self.pairs and self.to not in IMITATED:
            raise ConfigError(
                f"pairs come as sft (chat) or as tokens, not as {self.to}: use --to sft or --to tokens"
            )
        if self.file == "parquet" and self.to != "tokens":
            raise ConfigError(f"--file parquet is for --to tokens; --to {self.to} has its own kind of file")

    @property
    def needs_advantages(self) -> bool:
        return self.to not in IMITATED

    @property
    def needs_calls(self) -> bool:
        return self.to in WITH_MESSAGES

    def takes_calls_of(self, trajectory: Trajectory | None) -> bool:
        """Whether the calls of a session are needed. Without traces only for chat form, and only on request."""
        return self.needs_calls and (trajectory is not None or (self.to == "sft" and self.untrainable))

    @property
    def least_reward(self) -> float | None:
        """For pairs there is none: the rejected side has a low reward."""
        if self.pairs:
            return None
        if self.min_reward is None and self.to in IMITATED and not self.untrainable:
            return SOLVED
        return self.min_reward

    def has_task(self, task_id: str, group_id: str) -> bool:
        everything = not self.task_ids and not self.group_ids
        return everything or task_id in self.task_ids or group_id in self.group_ids

    def values(self) -> dict[str, Any]:
        """For the report."""
        return {
            "to": self.to,
            "min_reward": self.least_reward,
            "allow_inexact": self.allow_inexact,
            "untrainable": self.untrainable,
            "estimator": self.estimator,
            "pairs": self.pairs,
            "file": self.file,
            "object_arguments": self.object_arguments,
            "split": self.split,
            "repeated": len(self.repeated),
            "task_ids": sorted(self.task_ids),
            "group_ids": sorted(self.group_ids),
        }
