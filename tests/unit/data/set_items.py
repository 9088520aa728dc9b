"""What a reader of a task set gives, sorted into tasks and what it skips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from polar.data.task_sets import SkippedTask, TaskItem


class SetItems(NamedTuple):
    items: list[TaskItem]
    skipped: list[SkippedTask]

    @classmethod
    def of(cls, found: Iterable[TaskItem | SkippedTask]) -> SetItems:
        every = list(found)
        return cls(
            [each for each in every if isinstance(each, TaskItem)],
            [each for each in every if isinstance(each, SkippedTask)],
        )
