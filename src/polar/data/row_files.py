"""Reads rows from files: JSONL, a JSON list, or parquet, or a folder of them as a data set on disk has.

A line that is no row is skipped with its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from polar.errors import ConfigError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
FORMATS = ((".parquet",), (".jsonl", ".ndjson"), (".json",))
SPLITS = ("train", "validation", "valid", "val", "dev", "test")
NO_ROWS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files of a data set that describe it."""
NO_PYARROW = "parquet needs pyarrow: pip install 'polar-rollout[swe]', or convert the file to JSONL"


class RawRow(NamedTuple):
    where: str
    value: Any
    problem: str = ""
    """Why there is no value."""


def raw_rows(path: Path, split: str | None = None) -> Generator[RawRow]:
    """Raises `ConfigError` if the file cannot be read at all. `split`: which part of a data set's folder."""
    if path.is_dir():
        for file in data_files(path, split):
            yield from (row._replace(where=f"{file.parent.name}/{row.where}") for row in raw_rows(file))
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a file of rows ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        elif path.suffix == ".json":
            yield from _json(path)
        else:
            yield from _jsonl(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def data_files(folder: Path, split: str | None = None) -> list[Path]:
    """The files of a data set, such as `data/test-00000-of-00002.parquet`, in the order of their names. Of several
    formats, the first of parquet, JSONL and JSON. Raises `ConfigError` if it is not clear which are meant."""
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NO_ROWS and not _is_hidden(path.relative_to(folder))
    ]
    by_format = ([path for path in found if path.suffix in suffixes] for suffixes in FORMATS)
    files = next(filter(None, by_format), list[Path]())
    if not files:
        arrow = any(path.suffix == ".arrow" for path in found)
        hint = "; write it as parquet, with to_parquet of the library `datasets`" if arrow else ""
        raise ConfigError(f"{folder}: there is no parquet, JSONL or JSON file in it{hint}")
    splits = sorted({name for path in files if (name := _split_of(path)) is not None})
    if split is None and len(splits) > 1:
        raise ConfigError(f"{folder}: it has the splits {', '.join(splits)}: choose one with split")
    if split is None:
        return files
    if not (chosen := [path for path in files if _split_of(path) == split]):
        raise ConfigError(f"{folder}: it has no split {split!r}; it has {', '.join(splits) or 'none'}")
    return chosen


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _split_of(path: Path) -> str | None:
    """Of `test-00000-of-00002.parquet`, `test.jsonl` and `test/0000.parquet`; None: its name has none."""
    names = (re.split(r"[-.]", path.name)[0], path.parent.name)
    return next((name for name in names if name in SPLITS), None)


def _jsonl(path: Path) -> Iterator[RawRow]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            try:
                yield RawRow(where, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield RawRow(where, None, f"not JSON: {error}")


def _json(path: Path) -> Iterator[RawRow]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, list):
        raise ConfigError(f"{path}: not a list of rows")
    for number, row in enumerate(cast("list[Any]", found), start=1):
        yield RawRow(f"{path.name}, row {number}", row)


def _parquet(path: Path) -> Iterator[RawRow]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path}: {NO_PYARROW}") from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=100):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(f"{path.name}, row {number}", row)
    except import_module("pyarrow").ArrowException as error:
        raise ConfigError(f"{path}: cannot be read as parquet: {error}") from error
