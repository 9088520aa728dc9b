"""Task sets in other formats: a table of a TOML task file says where the set is, and a reader makes tasks of it.

A row or folder that cannot run is skipped with its reason, and the rest runs: a public set of thousands has some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from polar.toml.lines import Field
from polar.types import TaskRequest

SETS = {
    "harbor": "polar.data.harbor.reader:read_harbor",
    "swe": "polar.data.swe.reader:read_swe",
}
"""Table of a task file to its reader, which is imported when a file has that table."""


class TaskItem(NamedTuple):
    """A task as a plain value, not yet checked."""

    where: str
    value: Any
    of_set: bool = False
    """If it cannot run, it is skipped instead of refusing the whole file."""
    line_of: Callable[[Field], int | None] | None = None
    """The line of a field of the task, where the format tells it."""


class SkippedTask(NamedTuple):
    """A row or folder of a set that cannot run."""

    where: str
    why: str


SetReader = Callable[[Mapping[str, Any], Path], Iterable[TaskItem | SkippedTask]]
"""Takes the table and the folder of the task file. Raises `ConfigError` if the table itself is wrong."""


class TaskSet(NamedTuple):
    tasks: Sequence[TaskRequest]
    """Checked, each with an id. Not in memory: look at one at a time."""
    skipped: tuple[SkippedTask, ...] = ()


def set_reader(table: str) -> SetReader:
    module_name, _, name = SETS[table].partition(":")
    return cast("SetReader", getattr(import_module(module_name), name))
