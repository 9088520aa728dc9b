"""The database itself: whose it is, of which version, what happens when it is away, and who may change it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from desk import Clock, Desk, config_of
from sqlalchemy import Connection, create_engine, text, update

from pg_cluster import Postgres
from polar.server.records import tasks
from polar.server.records.tables import SCHEMA_VERSION, schema
from polar.server.state import Change, State
from polar.store import database
from polar.store.database import StoreError
from polar.store.server_database import CHANGE_LOCK
from waiting import hang_limit

BREAK_OFF = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


async def opened(database: str, clock: Clock) -> Desk:
    return Desk(await State.open(config_of(database), clock), clock)


async def test_all_is_there_when_it_is_opened_again(database: str, clock: Clock) -> None:
    first = await opened(database, clock)
    await first.submit(num_samples=2)
    await first.state.close()
    second = await opened(database, clock)
    assert (await second.state.read(tasks.status, "add")).session_ids == ("add-0", "add-1")
    await second.state.close()


async def test_another_schema_version_is_refused(database: str, clock: Clock) -> None:
    first = await opened(database, clock)

    def from_the_future(change: Change) -> None:
        change.connection.execute(update(schema).values(version=SCHEMA_VERSION + 1))

    await first.state.change(from_the_future)
    await first.state.close()
    with pytest.raises(StoreError, match=f"version {SCHEMA_VERSION + 1}"):
        await opened(database, clock)


async def test_a_database_of_somebody_else_is_left_alone(database: str, clock: Clock) -> None:
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (number INTEGER)"))
    engine.dispose()
    with pytest.raises(StoreError, match="another program"):
        await opened(database, clock)


async def test_changes_are_ordered_and_reads_see_those_before_them(desk: Desk) -> None:
    waiting = [asyncio.create_task(desk.submit(f"t{number}")) for number in range(50)]
    await asyncio.sleep(0)  # each task has asked by now
    newest = await desk.submit("last")
    listed = await desk.state.read(tasks.newest, 100)
    assert listed[0].task_id == newest.task_id
    await asyncio.gather(*waiting)
    assert [status.task_id for status in reversed(listed)] == [f"t{number}" for number in range(50)] + ["last"]


async def test_a_change_that_fails_does_not_take_its_neighbours_with_it(desk: Desk) -> None:
    def broken(change: Change) -> None:
        change.connection.execute(text("INSERT INTO policy (row, body) VALUES (1, 'half-done')"))
        raise RuntimeError("broken")

    outcomes: list[Any] = await asyncio.gather(
        desk.submit("a"), desk.state.change(broken), desk.submit("b"), return_exceptions=True
    )
    assert isinstance(outcomes[1], RuntimeError)
    assert len(await desk.rows("tasks")) == 2
    assert await desk.rows("policy") == []


async def test_a_statement_the_database_refuses_is_a_store_error(desk: Desk) -> None:
    def nonsense(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM nowhere"))

    def nonsense_change(change: Change) -> None:
        nonsense(change.connection)

    with pytest.raises(StoreError, match="nowhere"):
        await desk.state.read(nonsense)
    with pytest.raises(StoreError, match="nowhere"):
        await desk.state.change(nonsense_change)
    await desk.submit()


async def test_a_caller_that_is_cancelled_takes_nothing_back_and_others_hear_of_it(desk: Desk) -> None:
    rung = desk.state.signals["queue"].listen()
    caller = asyncio.create_task(desk.submit())
    await asyncio.sleep(0)
    caller.cancel()
    async with hang_limit():
        await rung.wait()
    assert len(await desk.rows("tasks")) == 1


async def test_a_closed_database_says_so(database: str, clock: Clock) -> None:
    desk = await opened(database, clock)
    await desk.state.close()
    with pytest.raises(StoreError, match="closed"):
        await desk.submit()


@pytest.mark.check
async def test_postgresql_that_broke_off_is_found_again(postgres: Postgres, clock: Clock) -> None:
    desk = await opened(postgres.new_database(), clock)
    await desk.submit("a")
    postgres.execute(BREAK_OFF)
    with pytest.raises(StoreError):
        await desk.submit("b")
    await desk.submit("c")
    postgres.execute(BREAK_OFF)
    with pytest.raises(StoreError):
        await desk.state.read(tasks.newest, 5)
    assert [status.task_id for status in await desk.state.read(tasks.newest, 5)] == ["c", "a"]
    await desk.state.close()


async def test_two_servers_on_one_database_change_it_one_after_the_other(database: str, clock: Clock) -> None:
    """It happens for a moment when a server is replaced: no session is leased twice."""
    one, other = await opened(database, clock), await opened(database, clock)
    await one.submit(num_samples=40)
    first, second = await one.register("first"), await other.register("second")
    turns = [desk.lease(node, 3) for _ in range(8) for desk, node in ((one, first), (other, second))]
    leased = [lease.session.session_id for leases in await asyncio.gather(*turns) for lease in leases]
    assert sorted(leased) == [f"add-{number:02}" for number in range(40)]
    await one.state.close()
    await other.state.close()


@pytest.mark.check
async def test_waiting_too_long_for_another_writer_is_an_error(
    postgres: Postgres, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.1)
    address = postgres.new_database()
    desk = await opened(address, clock)
    with psycopg.connect(host=str(postgres.folder), user="postgres", dbname="postgres") as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(%s)", (CHANGE_LOCK,))
        with pytest.raises(StoreError, match="lock timeout"):
            await desk.submit()
    await desk.submit()
    await desk.state.close()


async def test_a_database_that_is_not_there_is_named_without_its_password(clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        await opened(f"postgresql://polar:hunter2@/polar?host={tmp_path}", clock)
    assert "hunter2" not in str(caught.value)
    assert "polar" in str(caught.value)
    with pytest.raises(StoreError, match="unable to open"):
        await opened(f"sqlite:///{tmp_path}/no/folder/server.db", clock)


@pytest.mark.parametrize("address", ["mysql://root@localhost/polar", "not an address", ""])
async def test_an_address_of_no_use_is_refused_with_those_that_are(address: str, clock: Clock) -> None:
    with pytest.raises(StoreError, match=r"postgresql://"):
        await opened(address, clock)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "server.db"
    path.write_text("this is a diary, not a database; it is long enough to be taken for a header" * 20)
    with pytest.raises(StoreError, match="not a database"):
        await opened(f"sqlite:///{path}", clock)
    other = tmp_path / "journal.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE calls (number INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        await opened(f"sqlite:///{other}", clock)


@pytest.mark.parametrize("query", ["waiting", "held"])
async def test_sqlite_answers_the_lease_queries_from_their_indexes(
    tmp_path: Path, clock: Clock, query: str
) -> None:
    desk = await opened(f"sqlite:///{tmp_path / 'server.db'}", clock)
    plans = {
        "waiting": "SELECT * FROM sessions WHERE stage = 'QUEUED' AND lease_expires IS NULL"
        " AND task_id = 'add' ORDER BY number LIMIT 5",
        "held": "SELECT * FROM sessions WHERE lease_expires IS NOT NULL AND lease_expires <= 5",
    }

    def plan(connection: Connection) -> str:
        return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {plans[query]}").all())

    found = await desk.state.read(plan)
    assert f"sessions_{query}" in found
    assert "TEMP B-TREE" not in found
    await desk.state.close()
