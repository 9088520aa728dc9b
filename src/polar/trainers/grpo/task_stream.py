"""The tasks of a training run by number. The same number is always the same task, so a resumed run skips none."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from polar.data.git_sets import is_git_address
from polar.data.tasks import check_tasks, read_tasks
from polar.errors import ConfigError
from polar.types import TaskRequest

TaskMaker = Callable[[int], TaskRequest | Mapping[str, Any]]
SEED_TASKS = 2**24
"""Tasks by number that one seed has before those of the next begin."""


class TaskStream:
    """`source`: a task file, or `module:function` that makes a task of a number. Modules are found beside the
    config file (`folder`), too."""

    def __init__(self, source: str, folder: Path, seed: int = 0, fields: Mapping[str, Any] | None = None) -> None:
        """`fields` replace those of every task."""
        self._source = source
        self._seed = seed
        self._fields = dict(fields or {})
        self._tasks: Sequence[TaskRequest] = ()
        self._maker: TaskMaker | None = None
        self._path = Path(source) if is_git_address(source) else folder / source
        if is_git_address(source) or self._path.exists() or ":" not in source:
            self._tasks = read_tasks(self._path)
        else:
            self._maker = _function(source, folder)

    @property
    def size(self) -> int | None:
        """How many different tasks there are; None: a function makes them."""
        return None if self._maker else len(self._tasks)

    @property
    def identity(self) -> str:
        """Equal for streams whose numbers are the same tasks."""
        if self._maker is not None:
            return f"{self._source}, seed {self._seed}"
        digest = hashlib.sha256(self._path.read_bytes() if self._path.is_file() else b"")
        return f"{self._source} ({len(self._tasks)} tasks, {digest.hexdigest()[:12]}), seed {self._seed}"

    def task(self, number: int, task_id: str, samples: int) -> TaskRequest:
        task = self._made(self._seed * SEED_TASKS + number) if self._maker else self._of_file(number)
        values = task.model_dump(mode="json") if isinstance(task, TaskRequest) else dict(task)
        given = {"task_id": task_id, "group_id": task_id, "num_samples": samples}
        metadata = {"source_id": values.get("task_id"), **values.get("metadata", {})}
        return check_tasks([values | self._fields | given | {"metadata": metadata}])[0]

    def _made(self, number: int) -> TaskRequest | Mapping[str, Any]:
        assert self._maker is not None
        try:
            return self._maker(number)
        except Exception as error:  # a user's function may fail in any way
            raise ConfigError(
                f"tasks {self._source!r} made no task of the number {number}: {type(error).__name__}: {error}"
            ) from error

    def _of_file(self, number: int) -> TaskRequest:
        """All tasks of the file once in each round, in an order of the round."""
        rounds, place = divmod(number, len(self._tasks))
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}-{rounds}").shuffle(order)
        return self._tasks[order[place]]


def _function(source: str, folder: Path) -> TaskMaker:
    module_name, _, name = source.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: object = getattr(import_module(module_name), name)
    except (Exception, SystemExit) as error:  # importing a user's module may fail in any way, or exit
        raise ConfigError(f"tasks {source!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"tasks {source!r} is not a function that makes a task of a number")
    return cast("TaskMaker", found)
