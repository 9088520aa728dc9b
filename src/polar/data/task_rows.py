"""Tasks in parquet files and in folders of data files: a row is a task, its columns are the task's fields.

Rows in the columns of SWE-bench become tasks as those of the table `[swe]` do, and Harbor folders as those of
`[harbor]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast

import orjson

from polar.data.row_files import RawRow, raw_rows
from polar.data.task_formats import Problems
from polar.data.task_sets import SkippedTask, TaskItem, set_reader
from polar.types import TaskRequest

SWE_COLUMNS = {"instance_id", "FAIL_TO_PASS"}


def row_items(path: Path, problems: Problems) -> Iterator[TaskItem]:
    """Raises `ConfigError` if the file or folder cannot be read."""
    if path.is_dir() and _is_harbor(path):
        yield from _of_set("harbor", {"folders": path.name}, path, problems)
        return
    rows = raw_rows(path)
    first = next(rows, None)
    if first is None:
        return
    value: Any = first.value
    if isinstance(value, dict) and SWE_COLUMNS <= cast("dict[str, Any]", value).keys():
        rows.close()
        yield from _of_set("swe", {"rows": path.name}, path, problems)
        return
    yield from _items(chain([first], rows), problems)


def _is_harbor(folder: Path) -> bool:
    """A Harbor task, or a folder of some."""
    return any((each / "task.toml").is_file() for each in (folder, *folder.iterdir()))


def _of_set(name: str, table: dict[str, Any], path: Path, problems: Problems) -> Iterator[TaskItem]:
    for item in set_reader(name)(table, path.absolute().parent):
        if isinstance(item, SkippedTask):
            problems.skipped.append(item)
        else:
            yield item


def _items(rows: Iterator[RawRow], problems: Problems) -> Iterator[TaskItem]:
    for row in rows:
        if row.problem:
            problems.add(row.where, row.problem)
        else:
            yield TaskItem(row.where, _task(row.value))


def _task(value: Any) -> Any:
    """A missing value of a column is a field that the task does not have."""
    if not isinstance(value, dict):
        return value
    row = cast("dict[str, Any]", _without_nulls(value))
    return {name: _table(name, each) for name, each in row.items()}


def _without_nulls(value: Any) -> Any:
    """Of structs, in which parquet has every key of the column; a map comes as a list of pairs."""
    match value:
        case dict():
            table = cast("dict[str, Any]", value)
            return {key: _without_nulls(each) for key, each in table.items() if each is not None}
        case list():
            elements = cast("list[Any]", value)
            if elements and all(isinstance(each, tuple) for each in elements):
                return {key: _without_nulls(each) for key, each in cast("list[tuple[str, Any]]", elements)}
            return [_without_nulls(each) for each in elements]
        case _:
            return value


def _table(name: str, value: Any) -> Any:
    """A column may have tables and lists as JSON; the instruction is always text."""
    field = TaskRequest.model_fields.get(name)
    if not isinstance(value, str) or field is None or field.annotation is str or value[:1] not in ("{", "["):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
