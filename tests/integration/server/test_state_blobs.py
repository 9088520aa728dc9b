"""Databases of older Polars with uploads in them, and queries that must not grow with what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from desk import AS_IN_SCHEMA_7, Clock, Desk, blob_of, config_of, result_of
from sqlalchemy import Connection, create_engine, insert, text

from polar.config import RetentionConfig
from polar.server.records import groups, results, sessions, uploads
from polar.server.records.tables import SCHEMA_VERSION, upload_parts
from polar.server.retention.fetched import mark_results
from polar.server.retention.orphans import move_one
from polar.server.retention.removal import DAY_S, GRACE_S, remove_groups
from polar.server.retention.run import remove_batch
from polar.server.state import State
from polar.types import Stage

PART = uploads.PART_BYTES


async def opened(database: str, clock: Clock, **settings: Any) -> Desk:
    return Desk(await State.open(config_of(database, **settings), clock), clock)


async def written_by_schema_7(database: str, clock: Clock) -> dict[str, bytes]:
    """Two uploads, not compressed: one in one piece, one in two parts. Returns them."""
    desk = await opened(database, clock, blobs="database")
    await desk.submit(num_samples=2)
    node = await desk.register()
    blobs: dict[str, bytes] = {}
    for lease in await desk.lease(node, 2):
        await desk.report(node, lease)
        blobs[lease.session.session_id] = blob_of(result_of(lease))
    await desk.state.close()
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in (*AS_IN_SCHEMA_7, "UPDATE polar_server SET version = 7"):
            connection.execute(text(statement))
        for name, blob in blobs.items():
            rest = blob if name == "add-0" else blob[9:]
            written = {"blob": rest, "name": name}
            connection.execute(text("UPDATE uploads SET blob = :blob WHERE session_id = :name"), written)
        row = {"session_id": "add-1", "attempt": 1, "number": 0, "part": blobs["add-1"][:9]}
        connection.execute(insert(upload_parts).values(**row))
    engine.dispose()
    return blobs


async def test_uploads_of_schema_7_stay_readable(database: str, clock: Clock) -> None:
    blobs = await written_by_schema_7(database, clock)
    desk = await opened(database, clock, blobs="database")
    assert (await desk.rows("polar_server"))[0]["version"] == SCHEMA_VERSION
    for name, blob in blobs.items():
        assert await uploads.read_blob(desk.state, name) == blob
    [storage] = await desk.rows("storage")
    assert (storage["blobs"], storage["blob_bytes"]) == (2, sum(map(len, blobs.values())))
    assert {row["at"] for row in await desk.rows("uploads")} == {clock()}
    await desk.state.close()


async def test_they_are_moved_to_the_store_and_compressed(database: str, clock: Clock, tmp_path: Path) -> None:
    blobs = await written_by_schema_7(database, clock)
    desk = await opened(database, clock, blobs=f"folder:{tmp_path / 'blobs'}")
    while await move_one(desk.state):
        pass
    for name, blob in blobs.items():
        assert uploads.upload_msgpack(await uploads.read_blob(desk.state, name)) == blob
    assert await desk.rows("upload_parts") == []
    assert {row["blob"] for row in await desk.rows("uploads")} == {b""}
    [storage] = await desk.rows("storage")
    stored = [path.stat().st_size for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert (storage["blobs"], storage["blob_bytes"]) == (len(stored), sum(stored)) == (2, sum(stored))
    await desk.state.close()


async def test_results_of_schema_7_count_as_not_fetched(database: str, clock: Clock) -> None:
    await written_by_schema_7(database, clock)
    desk = await opened(database, clock)
    clock.advance(100 * DAY_S)
    rules = RetentionConfig(results_days=1)
    assert not (await remove_batch(desk.state, remove_groups, rules)).anything
    cursors = [entry.cursor for entry in (await desk.results()).results]
    await desk.state.change(mark_results, cursors)
    clock.advance(GRACE_S + 1)
    assert (await remove_batch(desk.state, remove_groups, rules)).sessions == 2
    await desk.state.close()


async def test_each_database_has_an_identity_that_stays(database: str, clock: Clock) -> None:
    first = await opened(database, clock)
    again, other = await opened(database, clock), await opened("sqlite://", clock)
    assert first.state.identity == again.state.identity != other.state.identity
    assert len(first.state.identity) == 16
    for desk in (first, again, other):
        await desk.state.close()


QUERIES: dict[str, tuple[Any, str]] = {
    "cursor": (lambda c: results.rows_after(c, 5, 100, results.ResultFilter()), "PRIMARY KEY"),
    "cursor of a task": (lambda c: results.rows_after(c, 5, 9, results.ResultFilter("add")), "results_of_task"),
    "cursor of a group": (
        lambda c: results.rows_after(c, 5, 9, results.ResultFilter(group_id="add")),
        "results_of_group",
    ),
    "groups": (lambda c: groups.done_after(c, 5, 9, None), "sqlite_autoindex_groups"),
    "sessions of a task": (lambda c: sessions.listing(c, "add", None, 9), "ix_sessions_task_id"),
    "ended sessions": (lambda c: sessions.listing(c, None, Stage.TIMED_OUT, 9), "outcomes_in_stage"),
    "open sessions": (lambda c: sessions.listing(c, None, Stage.QUEUED, 9), "sessions_open_in_stage"),
    "groups to remove": (lambda c: c.execute(removal_query()), "groups_fetched"),
}


def removal_query() -> Any:
    from polar.server.retention.removal import _old_groups  # the query itself is what is looked at

    return _old_groups(5.0, 1.0, unfetched=False).limit(9)


@pytest.mark.parametrize("name", QUERIES)
async def test_sqlite_answers_from_an_index_and_sorts_nothing(tmp_path: Path, clock: Clock, name: str) -> None:
    desk = await opened(f"sqlite:///{tmp_path / 'server.db'}", clock)
    look, index = QUERIES[name]

    def plans(connection: Connection) -> list[str]:
        asked: list[tuple[str, Any]] = []
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.set_trace_callback(lambda statement: asked.append((statement, None)))
        look(connection)
        raw.set_trace_callback(None)
        first = next(statement for statement, _ in asked if statement.startswith("SELECT"))
        return [str(row[-1]) for row in raw.execute(f"EXPLAIN QUERY PLAN {first}").fetchall()]

    found = await desk.state.read(plans)
    assert index in found[0], found
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN results") for step in found), found
    await desk.state.close()
