"""Reads the logs that harnesses keep of themselves: JSON lines, and the numbers of tokens in them.

The agent could write to these files, so nothing in them is taken for granted.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import orjson

from polar.types import HarnessUsage, ReplyCount

MOST_STEPS = 50_000_000
"""Of SQLite's machine for one query; a log is read in a fraction of that."""


class OwnLogError(ValueError):
    """A harness's log is not as that harness writes it."""


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                found: Any = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not line.endswith(b"\n"):  # the harness was killed while it wrote
                    return
                raise OwnLogError(f"{path.name}, line {number}: {error}") from error
            if isinstance(found, dict):
                yield cast("dict[str, Any]", found)


def inner(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The object under these keys; empty if there is none."""
    found: Any = value
    for key in keys:
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def total(usage: Mapping[str, Any], *keys: str) -> int:
    """The sum of these numbers; one that is missing is 0."""
    values = [usage.get(key) or 0 for key in keys]
    if not all(type(value) is int and value >= 0 for value in values):
        raise OwnLogError(f"numbers of tokens that are none: {usage!r:.200}")
    return sum(values)


class ReplyTally:
    """Replies by their ids in a log, in which a reply may stand several times while it grows."""

    def __init__(self) -> None:
        self._by_id: dict[str, ReplyCount] = {}

    def add(self, reply_id: object, prompt_tokens: int, completion_tokens: int) -> None:
        """The largest count of a reply is that of its end."""
        key = reply_id if isinstance(reply_id, str) and reply_id else f"\0{len(self._by_id)}"
        known = self._by_id.get(key)
        if known is None or completion_tokens >= known.completion_tokens:
            self._by_id[key] = ReplyCount(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)

    def usage(self) -> HarnessUsage:
        return HarnessUsage(replies=tuple(self._by_id.values()))


def tally_lines(
    logs: Path, pattern: str, note: Callable[[ReplyTally, dict[str, Any]], None]
) -> HarnessUsage | None:
    """Calls `note` with each JSON object in the lines of the files. None: there is no such file."""
    files = [path for path in sorted(logs.glob(pattern)) if path.is_file() and not path.is_symlink()]
    if not files:
        return None
    tally = ReplyTally()
    for path in files:
        for record in _lines_of(path):
            note(tally, record)
    return tally.usage()


def query(database: Path, statement: str) -> list[tuple[Any, ...]]:
    """Reads a copy: SQLite would write to the log's own folder, in which the newest rows are still apart."""
    with tempfile.TemporaryDirectory(prefix="polar-own-log-") as folder:
        for path in (database, database.with_name(f"{database.name}-wal")):
            if path.is_file() and not path.is_symlink():
                shutil.copyfile(path, Path(folder, path.name))
        try:
            with closing(sqlite3.connect(Path(folder, database.name))) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.set_progress_handler(lambda: 1, MOST_STEPS)
                return connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise OwnLogError(f"{database.name}: {error}") from error
