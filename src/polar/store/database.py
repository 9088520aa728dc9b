"""What SQLite and PostgreSQL do differently: how to connect, and how to begin a change no other one can cross."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from polar.errors import PolarError

CHANGE_LOCK = 0x706F6C6172
"""Whoever changes a PostgreSQL database of ours holds this advisory lock; the number spells "polar"."""


class StoreError(PolarError):
    """A database cannot do what it was asked: not there, locked, damaged, or the disk is full."""


class JournalError(StoreError):
    """The same of a node's journal."""


class Database(Protocol):
    name: str
    """For messages; holds no password."""
    error: type[StoreError]

    def engine(self) -> Engine: ...

    def begin(self, connection: Connection) -> None:
        """Begins a transaction that waits until no other one is changing the database."""
        ...


@dataclass
class Opening:
    """How a database is opened."""

    busy_timeout_s: float
    """How long a change waits for those of others before it fails."""
    read_only: bool = False


class SqliteDatabase:
    def __init__(self, path: Path | None, opening: Opening, *, journal: bool = False) -> None:
        self.name = f"the {'journal' if journal else 'database'} {path or 'in memory'}"
        self.error: type[StoreError] = JournalError if journal else StoreError
        self._path = path
        self._opening = opening

    def engine(self) -> Engine:
        return create_engine("sqlite://", creator=self._connect, poolclass=NullPool)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _connect(self) -> sqlite3.Connection:
        raw = sqlite3.connect(
            self._uri(),
            uri=True,
            timeout=self._opening.busy_timeout_s,
            isolation_level=None,  # transactions begin in `begin`, and nowhere else
        )
        raw.execute("PRAGMA foreign_keys = ON")
        if not self._opening.read_only:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = NORMAL")  # survives the death of the process, not of the power
        return raw

    def _uri(self) -> str:
        mode = "ro" if self._opening.read_only else "rwc"
        return "file::memory:" if self._path is None else f"{self._path.absolute().as_uri()}?mode={mode}"


class PostgresDatabase:
    def __init__(self, url: URL, opening: Opening) -> None:
        self.name = f"the database {url.render_as_string(hide_password=True)}"
        self.error: type[StoreError] = StoreError
        self._opening = opening
        self._url = url.set(drivername="postgresql+psycopg")

    def engine(self) -> Engine:
        try:
            engine = create_engine(self._url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise StoreError(f"{self.name} needs psycopg: pip install 'polar-rollout[postgres]'") from error
        event.listen(engine, "connect", self._bound_waiting)
        return engine

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({CHANGE_LOCK})")

    def _bound_waiting(self, raw: Any, _: object) -> None:
        """Of each new connection: as with SQLite, whoever waits too long for others is told so."""
        raw.execute(f"SET lock_timeout = {int(self._opening.busy_timeout_s * 1000)}")
        raw.commit()


def database_of(source: Path | str, opening: Opening) -> Database:
    """A journal by its path, or any database by its SQLAlchemy address."""
    if isinstance(source, Path):
        return SqliteDatabase(source, opening, journal=True)
    try:
        url = make_url(source)
    except ArgumentError as error:
        raise StoreError(
            "not a database's address; write sqlite:///<path> or postgresql://<host>/<name>"
        ) from error
    match url.get_backend_name():
        case "sqlite":
            in_memory = url.database in (None, "", ":memory:")
            return SqliteDatabase(None if in_memory else Path(str(url.database)), opening)
        case "postgresql":
            return PostgresDatabase(url, opening)
        case other:
            raise StoreError(f"{other!r} is no database Polar can use; take sqlite:// or postgresql://")
