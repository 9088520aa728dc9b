"""Options that choose tasks of a file, and run each with several harnesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polar.data.task_selection import TaskSelection
    from polar.types import Spec, TaskRequest

FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="FIELD=PATTERN", help="Only such tasks, as metadata.repo=owner/*."),
]
SampleOption = Annotated[int | None, typer.Option("--sample", min=1, help="Draw so many of the tasks.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Of the draw; 0 by default.")]
ShardOption = Annotated[str | None, typer.Option("--shard", metavar="I/N", help="Part I of N, by task id.")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many tasks.")]
HarnessesOption = Annotated[
    list[str] | None,
    typer.Option("--harness", help="Instead of the tasks' own; give several to run each task with each."),
]


@dataclass(frozen=True)
class TaskChoice:
    selection: TaskSelection
    harnesses: tuple[Spec, ...] = ()
    """Each task runs with each of them; none: with its own."""

    @property
    def is_everything(self) -> bool:
        """The tasks of a file as they are."""
        return self == choice_of()

    def of(self, tasks: Sequence[TaskRequest], suffix: str = "") -> Sequence[TaskRequest]:
        """`suffix`: makes ids new that a server may have."""
        from polar.trainers.eval_plan import planned

        found = self.selection.chosen(tasks)
        return planned(found, self.harnesses, (), suffix) if self.harnesses else found


def choice_of(
    filters: list[str] | None = None,
    sample: int | None = None,
    seed: int | None = None,
    shard: str | None = None,
    limit: int | None = None,
    harnesses: list[str] | None = None,
) -> TaskChoice:
    from polar.data.task_selection import FieldFilter, Shard, TaskSelection
    from polar.errors import ConfigError

    if seed is not None and sample is None:
        raise ConfigError("--seed belongs to --sample")
    selection = TaskSelection(
        filters=tuple(FieldFilter.parse(text) for text in filters or ()),
        shard=None if shard is None else Shard.parse(shard),
        sample=sample,
        seed=seed or 0,
        limit=limit,
    )
    return TaskChoice(selection, _specs(harnesses or []))


def _specs(names: list[str]) -> tuple[Spec, ...]:
    if not names:
        return ()
    from polar.trainers.eval_plan import read_spec

    return tuple(read_spec(text) for text in names)


def harness_of(tasks: Iterable[TaskRequest]) -> dict[str, str]:
    """Task id to its harness, by the name that it has among several."""
    from polar.trainers.eval_plan import label_of

    return {str(task.task_id): label_of(task).harness for task in tasks}
