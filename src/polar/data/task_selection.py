"""Chooses tasks of any task file: by field, by shard, by sample. The same choice each time, wherever it is made.

The order is filter, shard, sample, limit. Chosen tasks keep the order of the file, and their ids.
"""

from __future__ import annotations

import fnmatch
import hashlib
import heapq
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

from polar.data.stored_tasks import PickedTasks
from polar.errors import ConfigError
from polar.types import TaskRequest

FILTER = re.compile(r"(?P<field>[A-Za-z_][^=!]*?)(?P<negated>!?)=(?P<pattern>.*)", re.DOTALL)


class FieldFilter(NamedTuple):
    """A field of the task, and the pattern that its text must match."""

    path: tuple[str, ...]
    pattern: str
    negated: bool = False

    @classmethod
    def parse(cls, text: str) -> FieldFilter:
        """`FIELD=PATTERN` or `FIELD!=PATTERN`, such as `metadata.repo=django/*`."""
        found = FILTER.fullmatch(text)
        if found is None:
            raise ConfigError(f"--filter {text!r}: write FIELD=PATTERN, such as 'metadata.repo=owner/*'")
        path = tuple(found["field"].split("."))
        if path[0] not in TaskRequest.model_fields:
            known = ", ".join(TaskRequest.model_fields)
            raise ConfigError(f"--filter {text!r}: a task has no field {path[0]!r}; it has {known}")
        return cls(path, found["pattern"], bool(found["negated"]))

    def takes(self, task: dict[str, Any]) -> bool:
        matches = any(fnmatch.fnmatchcase(text, self.pattern) for text in _texts(_at(task, self.path)))
        return matches != self.negated


class Shard(NamedTuple):
    """The part `number`, from 1, of `of` parts."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"--shard {text!r}: write I/N with I from 1 to N, such as 1/4")
        return cls(int(found[1]), int(found[2]))

    def takes(self, task: TaskRequest) -> bool:
        """By its group, so that sessions which are compared are in one shard."""
        return _number(task.group) % self.of == self.number - 1


@dataclass(frozen=True)
class TaskSelection:
    filters: tuple[FieldFilter, ...] = ()
    """A task must pass all of them."""
    shard: Shard | None = None
    sample: int | None = None
    """Number of tasks that are drawn."""
    seed: int = 0
    """Of the draw."""
    limit: int | None = None
    """The first few of what is left."""

    def chosen(self, tasks: Sequence[TaskRequest]) -> Sequence[TaskRequest]:
        """The tasks must have ids. Raises `ConfigError` if none is left."""
        return tasks if self == TaskSelection() else PickedTasks(tasks, self.positions(tasks))

    def positions(self, tasks: Sequence[TaskRequest]) -> Sequence[int]:
        """Of the chosen ones, from 0. Nothing else is kept of the tasks."""
        passing = ((position, task) for position, task in enumerate(tasks) if self._takes(task))
        drawn = passing if self.sample is None else self._drawn(passing, self.sample)
        found = array("Q", (position for position, _ in islice(drawn, self.limit)))
        if tasks and not found:
            raise ConfigError(f"none of the {len(tasks)} tasks is selected: change --filter or --shard")
        return found

    def _takes(self, task: TaskRequest) -> bool:
        if self.shard is not None and not self.shard.takes(task):
            return False
        values = task.model_dump(mode="json") if self.filters else {}
        return all(each.takes(values) for each in self.filters)

    def _drawn(self, tasks: Iterable[tuple[int, TaskRequest]], count: int) -> list[tuple[int, str]]:
        """Position and id, by a hash of seed and id: a task that is added to the file changes little."""
        ids = ((position, str(task.task_id)) for position, task in tasks)
        return sorted(heapq.nsmallest(count, ids, key=lambda each: (_number(f"{self.seed}/{each[1]}"), each[1])))


def _number(text: str) -> int:
    """The same in each process and on each machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def _at(value: Any, path: Sequence[str]) -> Any:
    """The value at a path of keys; None: there is none. A key may have dots of its own."""
    if not path:
        return value
    if not isinstance(value, dict):
        return None
    table = cast("dict[str, Any]", value)
    for length in range(len(path), 0, -1):
        key = ".".join(path[:length])
        if key in table and (found := _at(table[key], path[length:])) is not None:
            return found
    return None


def _texts(value: Any) -> list[str]:
    """Of a list each element; of a plug-in its name; of a missing value none."""
    match value:
        case None:
            return []
        case bool():
            return ["true" if value else "false"]
        case list():
            return [text for each in cast("list[Any]", value) for text in _texts(each)]
        case dict():
            return _texts(cast("dict[str, Any]", value).get("name"))
        case _:
            return [str(value)]
