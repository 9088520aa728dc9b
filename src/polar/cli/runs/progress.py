"""Progress of a run: how many sessions are in each stage, and a line for each that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import typer

from polar.cli.output import error_console, number, one_line, progress_bar
from polar.types import SessionResult, Stage, TaskRequest, TaskStatus

if TYPE_CHECKING:
    from rich.status import Status

EXIT_FAILED_SESSIONS = 1
EXIT_INTERRUPTED = 130
LIVE_STAGES = (Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)


class PhasedBar:
    """A progress bar on stderr, so that stdout holds only the outcome. Until it begins, a line says what is being
    set up."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = error_console(quiet=quiet)
        self._status: Status | None = None
        self._bar = progress_bar(self.console)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._status is not None:
            self._status.stop()

    def phase(self, what: str) -> None:
        """Empty: all is set up."""
        if self._status is not None:
            self._status.stop()
        if not what:
            self._bar.start()
            return
        if not self.console.is_terminal:
            self.console.print(f"{what} ...")
        self._status = self.console.status(what)
        self._status.start()


class RunProgress(PhasedBar):
    """A `RunObserver`."""

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
        self._stage_of: dict[str, Stage] = {}
        total = sum(task.num_samples for task in tasks)
        self._task = self._bar.add_task(_counts({}), total=total, completed=len(earlier))

    @property
    def results(self) -> list[SessionResult]:
        """Those that came, in the order of the tasks."""
        came = {result.task_id for result in self._results}
        order = {task.task_id: position for position, task in enumerate(self._tasks) if task.task_id in came}
        return sorted(self._results, key=lambda result: (order[result.task_id], result.index))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        if stage in LIVE_STAGES:
            self._stage_of[session_id] = stage
        else:
            self._stage_of.pop(session_id, None)
        self._bar.update(self._task, description=_counts(self._stage_of))

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
