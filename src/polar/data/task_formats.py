"""Parses the three formats of a task file into plain values, each with its line.

JSONL holds one task per line, JSON one task or a list, TOML `[[tasks]]` and tables of task sets, with `[defaults]`
for all of them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from polar.data.task_sets import SETS, SkippedTask, TaskItem, set_reader
from polar.data.task_text import text_lines, whole_text
from polar.errors import ConfigError, did_you_mean
from polar.toml.lines import Field, FieldLines

SHOWN_PROBLEMS = 10
MERGED_TABLES = frozenset({"sampling", "budgets", "files", "keep", "metadata"})
"""Fields whose table is merged with its default key by key. Any other field replaces its default: the options of
one harness mean nothing to another."""


class Problems:
    """What is wrong with a file or a list of tasks, collected so that one error shows all of it."""

    def __init__(self, source: str, folder: Path | None = None) -> None:
        """`folder`: of the file, if there is one."""
        self.folder = folder
        self._source = source
        self._shown: list[str] = []
        """The first few."""
        self._count = 0
        self.skipped: list[SkippedTask] = []
        """Tasks of sets that cannot run."""

    def add(self, where: str, problem: str) -> None:
        """Once: a wrong default is wrong in every task."""
        line = f"{where}: {problem}" if where else problem
        if line in self._shown:
            return
        self._count += 1
        if self._count <= SHOWN_PROBLEMS:
            self._shown.append(line)

    def add_of(self, item: TaskItem, problem: str, field: Field = ()) -> None:
        """A problem of one task. `field`: the one that is wrong."""
        if item.of_set:
            self.skipped.append(SkippedTask(item.where, problem))
        else:
            line = item.line_of(field) if item.line_of and field else None
            self.add(item.where if line is None else f"line {line}", problem)

    def raise_if_any(self) -> None:
        if not self._count:
            return
        more = self._count - len(self._shown)
        rest = [f"and {more} more"] if more else []
        raise ConfigError("\n  ".join([f"{self._source}: nothing was run:", *self._shown, *rest]))


class _NotPlain(ValueError):
    """Accepted by Python, but not standard JSON."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise _NotPlain(f"the field {twice!r} occurs twice; keep one")
    return table


def _no_constant(name: str) -> Any:
    raise _NotPlain(f"{name} is not JSON; write a number")


_decoder = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)


def _decoded(text: str, problems: Problems, line: int | None = None) -> list[TaskItem]:
    """One value, or none and a problem. `line`: where the text begins, if it is one line of a file."""
    try:
        return [TaskItem(f"line {line or 1}", _decoder.decode(text))]
    except json.JSONDecodeError as error:
        problems.add(f"line {line or error.lineno}", f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        problems.add(f"line {line}" if line else "", _reason(error))
    return []


def _jsonl(path: Path, problems: Problems) -> Iterator[TaskItem]:
    for number, line in text_lines(path):
        yield from _decoded(line, problems, number)


def _json(path: Path, problems: Problems) -> list[TaskItem]:
    text = whole_text(path)
    items = _decoded(text, problems)
    return _list_items(text) if items and isinstance(items[0].value, list) else items


def _list_items(text: str) -> list[TaskItem]:
    """The elements of a valid JSON list, with the line each begins on."""
    items: list[TaskItem] = []
    gap = re.compile(r"[\s,]*")
    line, counted = 1, 0
    position = text.index("[") + 1
    while True:
        start = cast("re.Match[str]", gap.match(text, position)).end()
        if text[start] == "]":
            return items
        line, counted = line + text.count("\n", counted, start), start
        value, position = _decoder.raw_decode(text, start)
        items.append(TaskItem(f"line {line}", value))


def _toml(path: Path, problems: Problems) -> Iterable[TaskItem]:
    text, folder = whole_text(path), path.absolute().parent
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problems.add("", f"not TOML: {_reason(error)}")
        return []
    tasks, defaults = document.pop("tasks", []), document.pop("defaults", {})
    sets = {name: document.pop(name) for name in SETS if name in document}
    for key in document:
        known = "[[tasks]], [defaults] and the task sets " + " and ".join(f"[{name}]" for name in SETS)
        near = did_you_mean(key, ["tasks", "defaults", *SETS]).partition("; known")[0]
        line = FieldLines(text).of((key,))
        problems.add(
            f"line {line}" if line else "", f"unknown table {key!r}{near or ';'} a task file holds {known}"
        )
    if not isinstance(tasks, list):
        problems.add("tasks", "must be a list of tables; begin each with [[tasks]]")
        return []
    if not isinstance(defaults, dict):
        problems.add("defaults", "must be a table: [defaults]")
        return []
    found, under = cast("list[Any]", tasks), cast("dict[str, Any]", defaults)
    lines = FieldLines(text)
    own = [
        TaskItem(f"line {lines.of(('tasks', index))}", _over(under, task), line_of=partial(_line_of, lines, index))
        for index, task in enumerate(found)
    ]
    return chain(own, *(_of_set(name, table, under, folder, problems) for name, table in sets.items()))


def _line_of(lines: FieldLines, index: int, field: Field) -> int | None:
    """Of a field of one task: its own, or the default that it has instead."""
    inherited = not lines.has(("tasks", index, field[0])) and lines.has(("defaults", field[0]))
    return lines.of(("defaults", *field) if inherited else ("tasks", index, *field))


def _of_set(
    name: str, table: Any, defaults: dict[str, Any], folder: Path, problems: Problems
) -> Iterator[TaskItem]:
    if not isinstance(table, dict):
        problems.add(name, f"must be a table: [{name}]")
        return
    try:
        for item in set_reader(name)(cast("dict[str, Any]", table), folder):
            if isinstance(item, SkippedTask):
                problems.skipped.append(item)
            else:
                yield TaskItem(item.where, _over(defaults, item.value), of_set=True)
    except ConfigError as error:
        problems.add(f"[{name}]", str(error))


def _over(defaults: dict[str, Any], task: Any) -> Any:
    if not isinstance(task, dict):
        return task
    own = cast("dict[str, Any]", task)
    merged = defaults | own
    for key in MERGED_TABLES & defaults.keys() & own.keys():
        if isinstance(defaults[key], dict) and isinstance(own[key], dict):
            merged[key] = defaults[key] | own[key]
    return merged


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_PARSERS: dict[str, Callable[[Path, Problems], Iterable[TaskItem]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".toml": _toml,
}


def parse(path: Path, problems: Problems) -> Iterable[TaskItem]:
    """The tasks in file order, not yet checked; the file's suffix selects the format. What is no task is among the
    problems once its place is reached. Raises `ConfigError` if the file cannot be read."""
    parser = _PARSERS.get(path.suffix.lower())
    if parser is None:
        known = ", ".join((*_PARSERS, ".parquet"))
        raise ConfigError(f"{path}: a task file ends in {known}, not {path.suffix or 'nothing'!r}")
    return parser(path, problems)
