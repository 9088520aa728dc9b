"""Reads and checks task files, before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from polar import registry
from polar.data.git_sets import fetched, is_git_address
from polar.data.stored_tasks import StoredTasks
from polar.data.task_formats import SHOWN_PROBLEMS, Problems, parse
from polar.data.task_rows import row_items
from polar.data.task_sets import SkippedTask, TaskItem, TaskSet
from polar.errors import ConfigError, FieldProblem, field_problems
from polar.runtimes.options import RuntimeOptions
from polar.server.task_checks import file_problems, id_problems
from polar.types import Spec, TaskRequest

LOGGER = logging.getLogger(__name__)


def read_tasks(path: Path) -> StoredTasks:
    """The tasks of a file, or of a set in a git repository, each with an id; a `ConfigError` shows up to ten
    problems at once. A warning lists the tasks of sets that cannot run."""
    tasks, skipped = _read(path)
    if skipped:
        count = f"{len(skipped)} of {len(tasks) + len(skipped)}"
        LOGGER.warning("%s", listed(f"{path}: {count} tasks cannot run and are left out:", skipped))
    return tasks


def read_task_set(path: Path) -> TaskSet:
    """The same without the warning, and with what is left out."""
    return TaskSet(*_read(path))


def _read(path: Path) -> tuple[StoredTasks, tuple[SkippedTask, ...]]:
    if is_git_address(path):
        found = fetched(path)
        tasks, skipped = _read(found.path)
        tasks.origin = found.origin
        return tasks, skipped
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    problems = Problems(str(path), folder)
    tasks = _checked(_items(path, problems), problems, folder)
    skipped = _one_each(problems.skipped)
    if not tasks and skipped:
        raise ConfigError(listed(f"{path}: nothing was run, because no task can:", skipped))
    if not tasks:
        raise ConfigError(f"{path}: the file holds no task")
    return tasks, skipped


def _items(path: Path, problems: Problems) -> Iterable[TaskItem]:
    if path.is_dir() or path.suffix.lower() == ".parquet":
        return row_items(path, problems)
    return parse(path, problems)


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


def check_tasks(tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> StoredTasks:
    """Tasks made in Python, checked like those of a file: each has an id, no id twice, every plug-in is known."""
    values = (task.model_dump(mode="json") if isinstance(task, TaskRequest) else dict(task) for task in tasks)
    items = (TaskItem(f"task {number}", value) for number, value in enumerate(values, start=1))
    checked = _checked(items, Problems("tasks"))
    if not checked:
        raise ConfigError("there are no tasks to run")
    return checked


def _checked(items: Iterable[TaskItem], problems: Problems, folder: Path | None = None) -> StoredTasks:
    """`folder`: what relative paths begin at. Raises `ConfigError` if there are problems."""
    tasks = StoredTasks()
    for position, item in enumerate(items, start=1):
        if (task := _task_of(item, position, problems)) is None:
            continue
        other = tasks.add(_with_absolute_paths(task, folder) if folder else task, item.where)
        if other is not None:
            text = f"task_id: {task.task_id!r} is used at {other} too; rename one"
            problems.add_of(item, text, ("task_id",))
    problems.raise_if_any()
    return tasks


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
    found = registry.plugin_problems(task)
    for problem in found:
        problems.add_of(item, _with_folder(problem, task, problems.folder), problem.field)
    others = [*file_problems(task), *id_problems(task)]
    for text in others:
        problems.add_of(item, text, tuple(text.partition(":")[0].split(".")))
    return None if found or others else task


def _with_folder(problem: FieldProblem, task: TaskRequest, folder: Path | None) -> str:
    """A module of the user's own that stands beside the task file is named with its folder."""
    if folder is None or registry.FOLDER_ON_PATH not in problem:
        return problem
    top = getattr(task, str(problem.field[0])).name.partition(":")[0].partition(".")[0]
    if not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return problem
    return problem.replace(registry.FOLDER_ON_PATH, f"PYTHONPATH={folder}")


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
