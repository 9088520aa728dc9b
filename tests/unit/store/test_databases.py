"""Database URLs: which are accepted, and how messages name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from polar.store.database import StoreError
from polar.store.journal import JournalDatabase, JournalError
from polar.store.server_database import PostgresDatabase, SqliteDatabase, database_of
from polar.store.writer import DatabaseWriter


def test_a_journal_is_named_by_its_path() -> None:
    database = JournalDatabase(Path("run/journal.db"))
    assert (database.name, database.error) == ("the journal run/journal.db", JournalError)


def test_an_sqlite_address_is_a_database() -> None:
    database = database_of("sqlite:///run/server.db")
    assert isinstance(database, SqliteDatabase)
    assert (database.name, database.error) == ("the database run/server.db", StoreError)
    assert database_of("sqlite://").name == "the database in memory"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_postgresql_is_spoken_by_one_driver_and_its_password_is_not_shown(scheme: str) -> None:
    database = database_of(f"{scheme}://polar:hunter2@host/name")
    assert isinstance(database, PostgresDatabase)
    assert "hunter2" not in database.name
    assert database.engine().url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize("address", ["", "polar.db", "mysql://host/name", "postgres://host/name"])
def test_other_addresses_are_refused_with_an_example(address: str) -> None:
    with pytest.raises(StoreError, match="postgresql://"):
        database_of(address)


async def test_a_database_in_memory_works() -> None:
    writer = DatabaseWriter(database_of("sqlite://"))

    def prepare(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE numbers (n INTEGER)"))

    def insert(connection: Connection) -> None:
        connection.execute(text("INSERT INTO numbers VALUES (7)"))

    await writer.open(prepare)
    await writer.write(insert)
    assert (
        await writer.read(lambda connection: connection.execute(text("SELECT n FROM numbers")).scalar_one()) == 7
    )
    await writer.close()


async def test_a_journal_that_cannot_be_opened_is_a_journal_error(tmp_path: Path) -> None:
    writer = DatabaseWriter(JournalDatabase(tmp_path / "no" / "folder" / "journal.db"))
    with pytest.raises(JournalError, match="the journal"):
        await writer.open(lambda connection: None)
