"""Checked tasks that are not in memory: each is made when a command asks for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import cast, overload

from polar.data.row_store import RowStore
from polar.types import TaskRequest


class LazyTasks(Sequence[TaskRequest]):
    """Iterate instead of keeping them."""

    origin: str = ""
    """Of a set in a git repository: its address with the commit."""

    @abstractmethod
    def at(self, position: int) -> TaskRequest:
        """`position` counts from 0."""
        ...

    @overload
    def __getitem__(self, index: int) -> TaskRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskRequest]: ...
    def __getitem__(self, index: int | slice) -> TaskRequest | list[TaskRequest]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else [self.at(place) for place in places]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazyTasks | list | tuple):
            return NotImplemented
        tasks = cast("Sequence[object]", other)
        return len(self) == len(tasks) and all(mine == its for mine, its in zip(self, tasks, strict=True))


class StoredTasks(LazyTasks):
    """Tasks in the order in which they were added, each with an id of its own."""

    def __init__(self, tasks: Iterable[TaskRequest] = (), origin: str = "") -> None:
        self.origin = origin
        self._rows = RowStore()
        for task in tasks:
            self.add(task)

    def add(self, task: TaskRequest, place: str = "") -> str | None:
        """The place of an earlier task with this id, which stays instead; None: this one was added."""
        return self._rows.add(str(task.task_id), task.model_dump_json().encode(), place)

    def find(self, task_id: str) -> TaskRequest | None:
        found = self._rows.find(task_id)
        return None if found is None else TaskRequest.model_validate_json(found)

    def at(self, position: int) -> TaskRequest:
        return TaskRequest.model_validate_json(self._rows.at(position))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TaskRequest]:
        return map(TaskRequest.model_validate_json, self._rows)


class PickedTasks(LazyTasks):
    """Some of other tasks."""

    def __init__(self, tasks: Sequence[TaskRequest], positions: Sequence[int]) -> None:
        """`positions`: of the picked ones among `tasks`."""
        self._tasks = tasks
        self._positions = positions
        self.origin = set_origin(tasks)

    def at(self, position: int) -> TaskRequest:
        return self._tasks[self._positions[position]]

    def __len__(self) -> int:
        return len(self._positions)


def set_origin(tasks: Sequence[TaskRequest]) -> str:
    """Where they come from, if that is a git repository."""
    return tasks.origin if isinstance(tasks, LazyTasks) else ""
