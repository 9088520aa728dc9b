"""The server's database: created when it is empty, migrated from the versions of older Polars."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Row,
    Select,
    bindparam,
    case,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from polar.server.overview.outcome_columns import outcome_columns
from polar.server.records.tables import (
    GROUPS_NEWEST,
    METADATA,
    OPEN_INDEXES,
    SCHEMA_VERSION,
    SESSIONS_OPEN,
    groups,
    log_lines,
    outcomes,
    results,
    schema,
    sessions,
    stage_counts,
    tasks,
    training_points,
    training_runs,
    upload_parts,
    watched,
    watched_parts,
)
from polar.store.database import StoreError
from polar.types import SessionResult

BATCH = 500
"""Rows with a large body are read so many at a time."""


def prepare(connection: Connection) -> None:
    """Creates the tables in an empty database and migrates those of an older Polar. Refuses other databases."""
    found = inspect(connection).get_table_names()
    if schema.name not in found:
        if found:
            raise StoreError("the database holds tables of another program; give the rollout server an empty one")
        METADATA.create_all(connection)
        connection.execute(insert(schema).values(version=SCHEMA_VERSION))
        return
    version = connection.execute(select(schema.c.version)).scalar_one()
    while version in _MIGRATIONS:
        _MIGRATIONS[version](connection)
        version += 1
        connection.execute(update(schema).values(version=version))
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the database has schema version {version}, this Polar needs {SCHEMA_VERSION}; use the Polar that "
            "wrote it, or another database"
        )


def _add_drain(connection: Connection) -> None:
    for column in ("generating INTEGER NOT NULL DEFAULT 0", "heard_revision INTEGER"):
        connection.execute(text(f"ALTER TABLE nodes ADD COLUMN {column}"))


def _add_upload_parts(connection: Connection) -> None:
    """Uploads stored in one piece stay as they are, without parts."""
    upload_parts.create(connection, checkfirst=True)


def _add_earlier_attempts(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE sessions ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]'"))
    connection.execute(text("ALTER TABLE nodes ADD COLUMN sick TEXT"))


def _add_groups_and_training(connection: Connection) -> None:
    connection.execute(text("UPDATE results SET group_id = task_id WHERE group_id IS NULL"))
    SESSIONS_OPEN.create(connection, checkfirst=True)
    for table in (groups, training_runs, training_points):
        table.create(connection, checkfirst=True)
    group_id = func.coalesce(sessions.c.group_id, sessions.c.task_id)
    unfinished = func.count() - func.count(results.c.cursor)
    counted = (
        select(group_id, func.count(), unfinished, case((unfinished == 0, func.max(results.c.cursor))))
        .select_from(sessions.outerjoin(results, results.c.session_id == sessions.c.session_id))
        .group_by(group_id)
    )
    connection.execute(insert(groups).from_select(["group_id", "sessions", "unfinished", "cursor"], counted))


def _add_draining_nodes(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE nodes ADD COLUMN draining_since FLOAT"))


def _add_overview(connection: Connection) -> None:
    """Every result gets its outcome. Older Polars noted neither when a result came nor when a session came into
    its stage: these stay empty."""
    for table, column in (
        ("tasks", "budgets TEXT NOT NULL DEFAULT '{}'"),
        ("sessions", "harness TEXT NOT NULL DEFAULT ''"),
        ("sessions", "runtime TEXT NOT NULL DEFAULT ''"),
        ("sessions", "since FLOAT"),
        ("sessions", "leased FLOAT"),
        ("sessions", "waited_s FLOAT NOT NULL DEFAULT 0"),
        ("sessions", "cancelled FLOAT"),
        ("groups", "number BIGINT"),
        ("nodes", "uses TEXT NOT NULL DEFAULT '[]'"),
        ("nodes", "log_number INTEGER NOT NULL DEFAULT 0"),
    ):
        _add_column(connection, table, column)
    for table in (stage_counts, outcomes, log_lines, watched, watched_parts):
        table.create(connection, checkfirst=True)
    for index in (*OPEN_INDEXES, GROUPS_NEWEST):
        index.create(connection, checkfirst=True)
    counted = select(sessions.c.stage, func.count()).group_by(sessions.c.stage)
    connection.execute(insert(stage_counts).from_select(["stage", "sessions"], counted))
    _number_groups(connection)
    _describe_sessions(connection)
    _fill_outcomes(connection)


def _add_column(connection: Connection, table: str, column: str) -> None:
    """Unless an earlier step made the table as it is now."""
    if column.split()[0] not in {found["name"] for found in inspect(connection).get_columns(table)}:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column}"))


def _number_groups(connection: Connection) -> None:
    name = func.coalesce(sessions.c.group_id, sessions.c.task_id)
    in_order = select(name).group_by(name).order_by(func.min(sessions.c.number))
    if names := connection.execute(in_order).scalars().all():
        numbered = update(groups).where(groups.c.group_id == bindparam("this")).values(number=bindparam("place"))
        connection.execute(numbered, [{"this": each, "place": place} for place, each in enumerate(names, 1)])


def _describe_sessions(connection: Connection) -> None:
    for batch in _batches(connection, select(tasks.c.number, tasks.c.task_id, tasks.c.body), tasks.c.number):
        bodies = [(row.task_id, json.loads(row.body)) for row in batch]
        connection.execute(
            update(tasks).where(tasks.c.task_id == bindparam("this")).values(budgets=bindparam("given")),
            [{"this": task_id, "given": json.dumps(body.get("budgets", {}))} for task_id, body in bodies],
        )
        connection.execute(
            update(sessions)
            .where(sessions.c.task_id == bindparam("this"))
            .values(harness=bindparam("by"), runtime=bindparam("inside")),
            [
                {"this": task_id, "by": body["harness"]["name"], "inside": body["runtime"]["name"]}
                for task_id, body in bodies
            ],
        )


def _fill_outcomes(connection: Connection) -> None:
    known = (sessions.c.number, sessions.c.harness, sessions.c.node_id)
    stored = select(results.c.cursor, results.c.group_id, results.c.body, *known).join(
        sessions, sessions.c.session_id == results.c.session_id
    )
    for batch in _batches(connection, stored, results.c.cursor):
        connection.execute(
            insert(outcomes),
            [
                {
                    **outcome_columns(SessionResult.model_validate_json(row.body)),
                    "number": row.number,
                    "cursor": row.cursor,
                    "group_id": row.group_id,
                    "harness": row.harness,
                    "node_id": row.node_id,
                    "at": None,
                }
                for row in batch
            ],
        )


def _batches(
    connection: Connection, query: Select[*tuple[Any, ...]], key: Column[int]
) -> Iterator[Sequence[Row[Any]]]:
    """By a growing key, so that the rows of one batch are in memory at a time."""
    after = 0
    while rows := connection.execute(query.where(key > after).order_by(key).limit(BATCH)).all():
        yield rows
        after = getattr(rows[-1], key.name)


_MIGRATIONS = {
    1: _add_drain,
    2: _add_upload_parts,
    3: _add_earlier_attempts,
    4: _add_groups_and_training,
    5: _add_draining_nodes,
    6: _add_overview,
}
"""From each older schema version to the next."""
