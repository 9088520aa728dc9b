"""Writes tasks as a task file of any form. Reading it gives the same tasks.

A task has only the fields that differ from the defaults.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from polar.data.row_files import NO_PYARROW
from polar.data.task_sets import SkippedTask
from polar.data.task_text import MAX_FILE_BYTES
from polar.errors import ConfigError
from polar.toml.text import toml_key, toml_text, toml_value
from polar.types import TaskRequest

INTEGERS = ("num_samples", "priority")
ROWS_AT_ONCE = 1_000
"""Of parquet: a group of rows."""

Written = Iterator[SkippedTask]
"""Writes while it is iterated; gives the tasks that the form cannot hold."""


def write_task_file(tasks: Iterable[TaskRequest], out: Path) -> list[SkippedTask]:
    """The tasks that the form cannot hold. Replaces the file when it is complete."""
    writer = WRITERS.get(out.suffix.lower())
    if writer is None:
        raise ConfigError(f"{out}: write it as {', '.join(WRITERS)}, not {out.suffix or 'nothing'!r}")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent}: no such folder; make it first")
    scratch = out.with_name(f".{out.name}.{secrets.token_hex(8)}")
    try:
        skipped = list(writer(tasks, scratch))
        scratch.replace(out)
    finally:
        scratch.unlink(missing_ok=True)
    return skipped


def _values(task: TaskRequest) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude_defaults=True)


def _write_jsonl(tasks: Iterable[TaskRequest], path: Path) -> Written:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(_values(task), option=orjson.OPT_APPEND_NEWLINE) for task in tasks)
    yield from ()


def _write_toml(tasks: Iterable[TaskRequest], path: Path) -> Written:
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            try:
                file.write("\n[[tasks]]\n" + _toml(_values(task)))
            except ValueError as error:
                yield SkippedTask(str(task.task_id), str(error))
            if file.tell() > MAX_FILE_BYTES:
                raise ConfigError("a TOML file of tasks may have 32 MiB: write .jsonl or .parquet instead")


def _toml(values: dict[str, Any]) -> str:
    lines: list[str] = []
    for name, value in values.items():
        try:
            text = toml_text(value) if isinstance(value, str) and "\n" in value else toml_value(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        lines.append(f"{toml_key(name)} = {text}\n")
    return "".join(lines)


def _write_parquet(tasks: Iterable[TaskRequest], path: Path) -> Written:
    """A column for each field; tables and lists are JSON, because their keys differ from task to task."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(NO_PYARROW) from error
    kinds = ((name, arrow.int64() if name in INTEGERS else arrow.string()) for name in TaskRequest.model_fields)
    schema = arrow.schema(list(kinds))
    left = iter(tasks)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := [_cells(task) for task in islice(left, ROWS_AT_ONCE)]:
            writer.write_table(arrow.Table.from_pylist(rows, schema))
    yield from ()


def _cells(task: TaskRequest) -> dict[str, Any]:
    return {
        name: orjson.dumps(value).decode() if isinstance(value, dict | list) else value
        for name, value in _values(task).items()
    }


WRITERS: dict[str, Callable[[Iterable[TaskRequest], Path], Written]] = {
    ".toml": _write_toml,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
