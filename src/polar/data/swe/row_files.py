"""Reads rows from files: JSONL, a JSON list, or parquet. A line that is no row is skipped with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from polar.errors import ConfigError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
NO_PYARROW = "parquet needs pyarrow: pip install 'polar-rollout[swe]', or convert the file to JSONL"


class RawRow(NamedTuple):
    where: str
    value: Any
    problem: str = ""
    """Why there is no value."""


def raw_rows(path: Path) -> Iterator[RawRow]:
    """Raises `ConfigError` if the file cannot be read at all."""
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
