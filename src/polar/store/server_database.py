"""The server's databases, by SQLAlchemy: what SQLite and PostgreSQL do differently when they connect and begin."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from polar.store import database
from polar.store.database import Database, Opening, StoreError, connect_sqlite

CHANGE_LOCK = 0x706F6C6172
"""Whoever changes a PostgreSQL database of ours holds this advisory lock; the number spells "polar"."""


class _AlchemyDatabase:
    """What both have in common."""

    error: type[StoreError] = StoreError
    failure: type[Exception] = DBAPIError
    unable: type[Exception] = OperationalError

    def engine(self) -> Engine:
        raise NotImplementedError

    def connect(self) -> Connection:
        return self.engine().connect()

    def commit(self, connection: Connection) -> None:
        connection.commit()

    def rollback(self, connection: Connection) -> None:
        """A connection that cannot even do that is replaced at its next use."""
        try:
            connection.rollback()
        except DBAPIError:
            connection.invalidate()

    def close(self, connection: Connection) -> None:
        connection.close()


class SqliteDatabase(_AlchemyDatabase):
    def __init__(self, path: Path | None, opening: Opening) -> None:
        self.name = f"the database {path or 'in memory'}"
        self._path = path
        self._opening = opening

    def engine(self) -> Engine:
        return create_engine("sqlite://", creator=self._connect, poolclass=NullPool)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _connect(self) -> sqlite3.Connection:
        return connect_sqlite(self._path, self._opening)


class PostgresDatabase(_AlchemyDatabase):
    def __init__(self, url: URL, opening: Opening) -> None:
        self.name = f"the database {url.render_as_string(hide_password=True)}"
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


def database_of(address: str) -> Database[Connection]:
    """By its SQLAlchemy address."""
    opening = Opening(database.BUSY_TIMEOUT_S)
    try:
        url = make_url(address)
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
