"""Reads and checks task files, before anything runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from polar import registry
from polar.data.task_formats import SHOWN_PROBLEMS, Problems, parse
from polar.data.task_rows import row_items
from polar.data.task_sets import SkippedTask, TaskItem, TaskSet
from polar.errors import ConfigError, FieldProblem, field_problems
from polar.runtimes.options import RuntimeOptions
from polar.server.task_checks import file_problems, id_problems
from polar.types import Spec, TaskRequest

LOGGER = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 * 2**20
MAX_LINES_BYTES = 2**30
"""Of JSONL, of which one task at a time is decoded."""


def read_tasks(path: Path, *, max_bytes: int | None = None) -> list[TaskRequest]:
    """The tasks of a file, each with an id; a `ConfigError` shows up to ten problems at once. A warning lists the
    tasks of sets that cannot run."""
    tasks, skipped = read_task_set(path, max_bytes=max_bytes)
    if skipped:
        count = f"{len(skipped)} of {len(tasks) + len(skipped)}"
        LOGGER.warning("%s", listed(f"{path}: {count} tasks cannot run and are left out:", skipped))
    return tasks


def read_task_set(path: Path, *, max_bytes: int | None = None) -> TaskSet:
    """The same without the warning, and with what is left out."""
    problems = Problems(str(path), path if path.is_dir() else path.parent)
    tasks = _checked(_items(path, max_bytes, problems), problems)
    skipped = _one_each(problems.skipped)
    if not tasks and skipped:
        raise ConfigError(listed(f"{path}: nothing was run, because no task can:", skipped))
    if not tasks:
        raise ConfigError(f"{path}: the file holds no task")
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    return TaskSet([_with_absolute_paths(task, folder) for task in tasks], skipped)


def _items(path: Path, max_bytes: int | None, problems: Problems) -> Iterable[TaskItem]:
    if path.is_dir() or path.suffix.lower() == ".parquet":
        return row_items(path, problems)
    own = MAX_LINES_BYTES if path.suffix.lower() in (".jsonl", ".ndjson") else MAX_FILE_BYTES
    return parse(path, _text_of(path, max_bytes or own), problems)


def listed(title: str, skipped: Sequence[SkippedTask], shown: int = SHOWN_PROBLEMS) -> str:
    """Tasks that cannot run, each on a line of its own."""
    lines = [f"{each.where}: {each.why}" for each in skipped[:shown]]
    more = (
        [f"and {len(skipped) - shown} more; `polar tasks ls FILE` lists them all"] if len(skipped) > shown else []
    )
    return "\n  ".join([title, *lines, *more])


def _one_each(skipped: Sequence[SkippedTask]) -> tuple[SkippedTask, ...]:
    """All problems of a task in one line."""
    problems: dict[str, list[str]] = {}
    for where, why in skipped:
        problems.setdefault(where, []).append(why)
    return tuple(SkippedTask(where, "; ".join(whys)) for where, whys in problems.items())


def check_tasks(tasks: Sequence[TaskRequest | Mapping[str, Any]]) -> list[TaskRequest]:
    """Tasks made in Python, checked like those of a file: each has an id, no id twice, every plug-in is known."""
    values = [task.model_dump(mode="json") if isinstance(task, TaskRequest) else dict(task) for task in tasks]
    if not values:
        raise ConfigError("there are no tasks to run")
    items = [TaskItem(f"task {number}", value) for number, value in enumerate(values, start=1)]
    return _checked(items, Problems("tasks"))


def _checked(items: Iterable[TaskItem], problems: Problems) -> list[TaskRequest]:
    shared = _SharedParts()
    tasks = [
        (item._replace(value=None), shared.of(task))
        for position, item in enumerate(items, start=1)
        if (task := _task_of(item, position, problems)) is not None
    ]
    _refuse_duplicates(tasks, problems)
    problems.raise_if_any()
    skipped = {where for where, _ in problems.skipped}
    return [task for item, task in tasks if not (item.of_set and item.where in skipped)]


class _SharedParts:
    """Equal parts of neighbouring tasks become one object: the tasks of a set differ in little, and a set may have
    many thousands."""

    names = ("runtime", "harness", "builder", "evaluator", "sampling", "budgets", "keep")

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def of(self, task: TaskRequest) -> TaskRequest:
        for name in self.names:
            part = getattr(task, name)
            if self._last.get(name) != part:
                self._last[name] = part
        return task.model_copy(update=self._last)


def _with_absolute_paths(task: TaskRequest, folder: Path) -> TaskRequest:
    """Paths of workspace and runtime are relative to the task file, wherever the sessions run."""
    update: dict[str, Any] = {"runtime": _located(task.runtime, folder)}
    if (source := task.workspace) is not None:
        named = ((name, getattr(source, name)) for name in ("folder", "git"))
        paths = {name: str(folder / path) for name, path in named if path is not None}
        update["workspace"] = source.model_copy(update=paths)
    return task.model_copy(update=update)


def _located(spec: Spec, folder: Path) -> Spec:
    options = registry.options_of("runtime", registry.find("runtime", spec.name), spec.options)
    paths = options.located(folder) if isinstance(options, RuntimeOptions) else {}
    return spec.model_copy(update={"options": spec.options | paths}) if paths else spec


def named(task: TaskRequest, position: int) -> TaskRequest:
    """A task without an id gets one from its position, so that reading the file again gives the same id."""
    return task if task.task_id else task.model_copy(update={"task_id": f"task-{position:04}"})


def _text_of(path: Path, max_bytes: int) -> str:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
        size = path.stat().st_size
        if size > max_bytes:
            raise ConfigError(f"{path}: {size} bytes, more than the {max_bytes} a task file may have; split it")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not text in UTF-8: byte {error.start} is {error.object[error.start]:#x}"
        ) from error
    if "\0" in text:
        raise ConfigError(f"{path}: not a text file: it holds NUL bytes")
    if not text.strip():
        raise ConfigError(f"{path}: the file is empty")
    return text


def _task_of(item: TaskItem, position: int, problems: Problems) -> TaskRequest | None:
    value: Any = item.value
    if not isinstance(item.value, dict):
        problems.add_of(item, f"a task is an object with an instruction, not {_short(item.value)}")
        return None
    try:
        # Through JSON again: types are checked strictly, and a value that cannot be sent to another process is
        # refused here.
        task = TaskRequest.model_validate_json(orjson.dumps(value), strict=True)
    except orjson.JSONEncodeError as error:
        problems.add_of(item, f"holds a value that JSON cannot hold: {error}")
        return None
    except ValidationError as error:
        for problem in field_problems(error, TaskRequest):
            problems.add_of(item, problem, problem.field)
        return None
    task = named(task, position)
    for problem in registry.plugin_problems(task):
        problems.add_of(item, _with_folder(problem, task, problems.folder), problem.field)
    for text in [*file_problems(task), *id_problems(task)]:
        problems.add_of(item, text, tuple(text.partition(":")[0].split(".")))
    return task


def _with_folder(problem: FieldProblem, task: TaskRequest, folder: Path | None) -> str:
    """A module of the user's own that stands beside the task file is named with its folder."""
    if folder is None or registry.FOLDER_ON_PATH not in problem:
        return problem
    top = getattr(task, str(problem.field[0])).name.partition(":")[0].partition(".")[0]
    if not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return problem
    return problem.replace(registry.FOLDER_ON_PATH, f"PYTHONPATH={folder}")


def _refuse_duplicates(tasks: Sequence[tuple[TaskItem, TaskRequest]], problems: Problems) -> None:
    count = Counter(task.task_id for _, task in tasks)
    first: dict[str | None, str] = {}
    for item, task in tasks:
        if count[task.task_id] > 1 and first.setdefault(task.task_id, item.where) != item.where:
            text = f"task_id: {task.task_id!r} is used at {first[task.task_id]} too; rename one"
            problems.add_of(item, text, ("task_id",))


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
