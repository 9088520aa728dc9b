"""The server's databases, through SQLAlchemy: what SQLite and PostgreSQL do differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from polar.store import database
from polar.store.database import Database, StoreError, connect_sqlite

CHANGE_LOCK = 0x706F6C6172
"""The advisory lock that every change of a PostgreSQL database holds; the number spells "polar"."""


class _AlchemyDatabase:
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
        """A connection that fails even here is replaced at its next use."""
        try:
            connection.rollback()
        except DBAPIError:
            connection.invalidate()

    def close(self, connection: Connection) -> None:
        connection.close()


class SqliteDatabase(_AlchemyDatabase):
    def __init__(self, path: Path | None) -> None:
        self.name = f"the database {path or 'in memory'}"
        self._path = path

    def engine(self) -> Engine:
        return create_engine("sqlite://", creator=lambda: connect_sqlite(self._path), poolclass=NullPool)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class PostgresDatabase(_AlchemyDatabase):
    def __init__(self, url: URL) -> None:
        self.name = f"the database {url.render_as_string(hide_password=True)}"
        self._url = url.set(drivername="postgresql+psycopg")

    def engine(self) -> Engine:
        try:
            engine = create_engine(self._url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise StoreError(f"{self.name} needs psycopg: pip install 'polar-rollout[postgres]'") from error
        event.listen(engine, "connect", _set_lock_timeout)
        return engine

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({CHANGE_LOCK})")


def _set_lock_timeout(raw: Any, _: object) -> None:
    """On each new connection, the same limit as for SQLite."""
    raw.execute(f"SET lock_timeout = {int(database.BUSY_TIMEOUT_S * 1000)}")
    raw.commit()


def database_of(address: str) -> Database[Connection]:
    """Takes an SQLAlchemy URL."""
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise StoreError("not a database URL; write sqlite:///<path> or postgresql://<host>/<name>") from error
    match url.get_backend_name():
        case "sqlite":
            in_memory = url.database in (None, "", ":memory:")
            return SqliteDatabase(None if in_memory else Path(str(url.database)))
        case "postgresql":
            return PostgresDatabase(url)
        case other:
            raise StoreError(f"Polar does not support {other!r} databases; use sqlite:// or postgresql://")
