"""What the writer needs of a database, and the journal's database: plain `sqlite3`.

Each model call writes to the journal, and SQLAlchemy would take longer for a statement than SQLite. For the
server's databases see `server_database.py`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Protocol, TypeVar

from polar.errors import PolarError

C = TypeVar("C")
BUSY_TIMEOUT_S = 10.0
"""How long a change waits for the changes of others before it fails."""


class StoreError(PolarError):
    """A database failed: it is missing, locked, damaged, or the disk is full."""


class JournalError(StoreError):
    """A node's journal failed."""


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
        """SharedPrefix a transaction that waits until no other one is changing the database."""
        ...

    def commit(self, connection: C) -> None: ...

    def rollback(self, connection: C) -> None:
        """Ends the transaction, if there is one."""

    def close(self, connection: C) -> None: ...


class JournalDatabase:
    """A node's journal: an SQLite file."""

    error: type[StoreError] = JournalError
    failure: type[Exception] = sqlite3.Error
    unable: type[Exception] = sqlite3.OperationalError

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.name = f"the journal {path}"
        self._path = path
        self._read_only = read_only

    def connect(self) -> sqlite3.Connection:
        return connect_sqlite(self._path, read_only=self._read_only)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def rollback(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()


def connect_sqlite(path: Path | None, *, read_only: bool = False) -> sqlite3.Connection:
    """`path` None: a database in memory."""
    mode = "ro" if read_only else "rwc"
    uri = "file::memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    raw = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # only `begin` begins transactions
    )
    raw.execute("PRAGMA foreign_keys = ON")
    if not read_only:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = NORMAL")  # survives a killed process, not a power failure
    return raw
