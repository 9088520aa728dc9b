"""Rows outside memory, by key and by position: a set may have a hundred thousand, and a command looks at one at a
time.

They are in a private SQLite database without a name, which ends with the process. A small one stays in memory, a
large one is a temporary file.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator

from polar.errors import PolarError

TABLE = "CREATE TABLE row (position INTEGER PRIMARY KEY, key TEXT UNIQUE, place TEXT, value BLOB)"


class RowStore:
    """Rows in the order in which they were added. Any thread may read: some commands read in the main thread and
    run in another."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        # It is never read again after a crash, so nothing has to be safe on the disk.
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", TABLE, "BEGIN"):
            self._database.execute(statement)
        self._count = 0

    def add(self, key: str, value: bytes, place: str = "") -> str | None:
        """The place of an earlier row with this key, which stays instead; None: this one was added. Raises
        `PolarError` if the disk is full."""
        row = (self._count, key, place, value)
        try:
            added = self._database.execute("INSERT OR IGNORE INTO row VALUES (?, ?, ?, ?)", row).rowcount
        except sqlite3.OperationalError as error:
            raise PolarError(
                f"cannot write the tasks to a temporary file: {error}; set SQLITE_TMPDIR to a larger folder"
            ) from error
        if added:
            self._count += 1
            return None
        return str(self._database.execute("SELECT place FROM row WHERE key = ?", (key,)).fetchone()[0])

    def find(self, key: str) -> bytes | None:
        found = self._database.execute("SELECT value FROM row WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def at(self, position: int) -> bytes:
        return self._database.execute("SELECT value FROM row WHERE position = ?", (position,)).fetchone()[0]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        for (value,) in self._database.execute("SELECT value FROM row ORDER BY position"):
            yield value
