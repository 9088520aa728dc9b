"""What the writer needs of a database, and how SQLite files are opened.

The databases are the journal's (`journal.py`) and the server's (`server_database.py`).
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from polar.errors import PolarError
from polar.store.private import private_file

C = TypeVar("C")
BUSY_TIMEOUT_S = 10.0
"""How long a change waits for the changes of others before it fails."""


class StoreError(PolarError):
    """A database failed: it is missing, locked, damaged, or the disk is full."""


class Database(Protocol[C]):
    """Used by one thread, which also opens its connection."""

    name: str
    """For messages; without a password."""
    error: type[StoreError]
    """What the writer raises for a `failure`."""
    failure: type[Exception]
    """What the driver raises."""
    unable: type[Exception]
    """Driver errors that would fail any change: a full or locked disk, a server that is away."""

    def connect(self) -> C: ...

    def begin(self, connection: C) -> None:
        """Starts a transaction that waits until no other one is changing the database."""
        ...

    def commit(self, connection: C) -> None: ...

    def rollback(self, connection: C) -> None:
        """Ends the transaction, if there is one."""

    def close(self, connection: C) -> None: ...


def connect_sqlite(path: Path | None, *, read_only: bool = False) -> sqlite3.Connection:
    """`path` None: a database in memory."""
    mode = "ro" if read_only else "rwc"
    if path is not None and not read_only:
        with suppress(OSError):  # SQLite reports it
            os.close(private_file(str(path), os.O_RDWR | os.O_CREAT))  # -wal and -shm get its mode
    uri = "file::memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    raw = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # only `begin` begins transactions
    )
    try:
        raw.execute("PRAGMA foreign_keys = ON")
        if not read_only:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = NORMAL")  # survives a killed process, not a power failure
    except sqlite3.Error:  # it is damaged, or no database
        raw.close()
        raise
    return raw
