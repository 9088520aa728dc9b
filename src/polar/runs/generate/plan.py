"""What is generated: how many sessions of each task, which of them are confirmed, and how they are split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from polar.data.export.plan import SOLVED, FileType
from polar.errors import ConfigError
from polar.types import SessionResult, Stage, TaskRequest

GeneratedFormat = Literal["sft", "tokens"]
Outcome = Literal["accepted", "rejected", "failed", "lost"]
"""accepted: confirmed and trainable. rejected: every other session that its agent ended. failed: through
infrastructure. lost: cancelled, or without a result."""

MAX_SESSIONS = 1_000
"""Of one task: session ids have three digits."""


class SplitRatio(NamedTuple):
    """How much of the data is for training, the rest for testing."""

    train: int
    test: int

    @property
    def test_share(self) -> float:
        return self.test / (self.train + self.test)

    @classmethod
    def of(cls, text: str) -> SplitRatio:
        """From `90/10`."""
        parts = text.split("/")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts) or not int(parts[0]):
            raise ConfigError(f"--split {text!r}: write it as 90/10, the train part above 0")
        return cls(int(parts[0]), int(parts[1]))


DEFAULT_SPLIT = SplitRatio(90, 10)


@dataclass(frozen=True)
class GeneratePlan:
    attempts: int = 4
    """Sessions of a task at most, without those that failed through infrastructure."""
    wanted: int = 1
    """Confirmed sessions of a task; no session begins that could give more."""
    min_reward: float = SOLVED
    """The least reward of a confirmed session."""
    max_failures: int = 3
    """A run gives a task up after this many sessions that failed through infrastructure; the next run does not."""
    split: SplitRatio = DEFAULT_SPLIT
    split_by: str = "repo"
    """Key of the tasks' metadata; a dot goes into a table. Tasks with the same value stay on one side."""
    seed: int = 0
    """Of the split."""
    formats: tuple[GeneratedFormat, ...] = ("sft", "tokens")
    file: FileType = "jsonl"
    """Of `tokens`."""
    object_arguments: bool = True
    """In chat form: arguments of tool calls as objects."""

    def __post_init__(self) -> None:
        if self.wanted > self.attempts:
            raise ConfigError(
                f"{self.wanted} confirmed sessions of a task need as many attempts; --attempts is {self.attempts}"
            )
        if self.attempts + self.max_failures > MAX_SESSIONS:
            raise ConfigError(f"--attempts and --max-failures: a task may have {MAX_SESSIONS} sessions at most")

    def outcome_of(self, result: SessionResult | None) -> Outcome:
        if result is None or result.stage is Stage.CANCELLED:
            return "lost"
        if result.failed_by_infrastructure:
            return "failed"
        confirmed = result.reward is not None and result.reward >= self.min_reward
        return "accepted" if confirmed and result.trainable else "rejected"

    def repository_of(self, task: TaskRequest) -> str:
        """The value of `split_by`. A task without it stands alone, under its own id."""
        value: Any = task.metadata
        for part in self.split_by.split("."):
            value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
        return (task.task_id or "") if value is None else str(value)

    def values(self) -> dict[str, Any]:
        """For the card."""
        return {
            "attempts": self.attempts,
            "wanted": self.wanted,
            "min_reward": self.min_reward,
            "max_failures": self.max_failures,
            "split": f"{self.split.train}/{self.split.test}",
            "split_by": self.split_by,
            "seed": self.seed,
            "formats": list(self.formats),
        }
