"""The database port of the writer, and the journal's side of it: plain `sqlite3`.

Each model call writes here, and SQLAlchemy would take longer for a statement than SQLite. The server's databases,
which may also be PostgreSQL, stand in `server_database.py`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from polar.errors import PolarError

C = TypeVar("C")
BUSY_TIMEOUT_S = 10.0


class StoreError(PolarError):
    """A database cannot do what it was asked: not there, locked, damaged, or the disk is full."""


class JournalError(StoreError):
    """The same of a node's journal."""


@dataclass
class Opening:
    """How a database is opened."""

    busy_timeout_s: float
    """How long a change waits for those of others before it fails."""
    read_only: bool = False


class Database(Protocol[C]):
    """Used by one thread, which also makes its connection."""

    name: str
    """For messages; holds no password."""
    error: type[StoreError]
    """What its failures become."""
    failure: type[Exception]
    """What the driver raises."""
    unable: type[Exception]
    """Which of them no change of ours would survive: a full or locked disk, a server that is away."""

    def connect(self) -> C: ...

    def begin(self, connection: C) -> None:
        """Begins a transaction that waits until no other one is changing the database."""
        ...

    def commit(self, connection: C) -> None: ...

    def rollback(self, connection: C) -> None:
        """Ends the transaction, if any is left."""
        ...

    def close(self, connection: C) -> None: ...


class JournalDatabase:
    """An SQLite file."""

    error: type[StoreError] = JournalError
    failure: type[Exception] = sqlite3.Error
    unable: type[Exception] = sqlite3.OperationalError

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.name = f"the journal {path}"
        self._path = path
        self._opening = Opening(BUSY_TIMEOUT_S, read_only)

    def connect(self) -> sqlite3.Connection:
        return connect_sqlite(self._path, self._opening)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def rollback(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()


def connect_sqlite(path: Path | None, opening: Opening) -> sqlite3.Connection:
    """None: a database in memory."""
    mode = "ro" if opening.read_only else "rwc"
    uri = "file::memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    raw = sqlite3.connect(
        uri,
        uri=True,
        timeout=opening.busy_timeout_s,
        isolation_level=None,  # transactions begin in `begin`, and nowhere else
    )
    raw.execute("PRAGMA foreign_keys = ON")
    if not opening.read_only:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = NORMAL")  # survives the death of the process, not of the power
    return raw
