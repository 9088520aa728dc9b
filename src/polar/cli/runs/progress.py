"""What `polar run` shows while it runs: how many sessions are in each stage, and a line for each that is done."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from polar.cli.output import number, one_line
from polar.types import SessionResult, Stage

if TYPE_CHECKING:
    from rich.status import Status

LIVE_STAGES = (Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)


class RunProgress:
    """A `Watcher`. Writes to stderr, so that stdout holds only the outcome."""

    def __init__(self, sessions: int, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
        self._stage_of: dict[str, Stage] = {}
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self._task = self._bar.add_task(_counts({}), total=sessions)

    def status(self, what: str) -> Status:
        """Shown while something long runs before the first session."""
        if not self.console.is_terminal:
            self.console.print(f"{what} ...")
        return self.console.status(what)

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.stop()

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        self._stage_of[session_id] = stage
        self._bar.update(self._task, description=_counts(self._stage_of))

    def finished(self, result: SessionResult) -> None:
        self._bar.advance(self._task)
        self.console.print(_line(result), style=None if result.failure is None else "yellow")


def _counts(stage_of: dict[str, Stage]) -> str:
    count = Counter(stage_of.values())
    return "  ".join(f"{stage.value} {count[stage]}" for stage in LIVE_STAGES)


def _line(result: SessionResult) -> str:
    statistics = result.statistics
    parts = [
        f"{result.session_id:<12}",
        f"{result.stage.value:<9}",
        f"reward {number(result.reward, 2)}",
        f"{statistics.calls} calls",
        f"{statistics.trainable_tokens} trainable tokens",
        f"{sum(result.stage_s.get(s.value, 0.0) for s in LIVE_STAGES):.1f} s",
    ]
    if result.ended_by:
        parts.append(f"ended by {result.ended_by}")
    if result.failure is not None:
        parts.append(one_line(f"{result.failure.where}: {result.failure.message}", 90))
    return "  ".join(parts)
