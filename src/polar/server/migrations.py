"""The server's database: created when it is empty, migrated from the versions of older Polars."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from polar.server.access.tables import actions, logins, tokens
from polar.server.overview.outcome_columns import outcome_columns
from polar.server.overview.tables import log_lines, watched, watched_parts
from polar.server.records.tables import (
    GROUPS_FETCHED,
    GROUPS_NEWEST,
    IS_HELD,
    IS_OPEN,
    IS_WAITING,
    METADATA,
    NEEDS_WAITING,
    OPEN_INDEXES,
    OUTCOMES_AT,
    OUTCOMES_FAILED_BY,
    QUEUE_NEXT,
    SCHEMA_VERSION,
    SESSIONS_OPEN,
    SESSIONS_WAITING,
    UPLOADS_INSIDE,
    UPLOADS_KEY,
    UPLOADS_STORED,
    groups,
    needs,
    outcomes,
    queue,
    removed,
    results,
    schema,
    sessions,
    stage_counts,
    storage,
    tasks,
    training_points,
    training_runs,
    upload_parts,
    uploads,
)
from polar.server.scheduling.needs import needs_of
from polar.server.scheduling.stored_needs import needs_id_of
from polar.store.database import StoreError
from polar.types import SessionResult, TaskRequest

EMPTY_STORAGE = {"row": 1, "blobs": 0, "blob_bytes": 0, "results_removed": 0, "events_removed": 0}
BATCH = 500
"""Rows with a large body are read so many at a time."""


def prepare(connection: Connection) -> None:
    """Creates the tables in an empty database and migrates those of an older Polar. Refuses other databases."""
    found = inspect(connection).get_table_names()
    if schema.name not in found:
        if found:
            raise StoreError("the database holds tables of another program; give the rollout server an empty one")
        METADATA.create_all(connection)
        connection.execute(insert(schema).values(version=SCHEMA_VERSION, identity=secrets.token_hex(8)))
        connection.execute(insert(storage).values(EMPTY_STORAGE))
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


def identity_of(connection: Connection) -> str:
    return connection.execute(select(schema.c.identity)).scalar_one()


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


def _add_access(connection: Connection) -> None:
    for table in (tokens, logins, actions):
        table.create(connection, checkfirst=True)
    for column in ("old_key_sha256 TEXT", "old_key_expires FLOAT"):
        _add_column(connection, "nodes", column)


def _add_blob_store(connection: Connection) -> None:
    """Uploads stay where they are until the server moves them. No result counts as fetched: older Polars did not
    note it."""
    for table, column in (
        ("polar_server", "identity TEXT"),
        ("results", "fetched FLOAT"),
        ("groups", "unfetched INTEGER NOT NULL DEFAULT 0"),
        ("uploads", "blob_key TEXT"),
        ("uploads", "size_bytes BIGINT NOT NULL DEFAULT 0"),
        ("uploads", "at FLOAT"),
        ("uploads", "fetched FLOAT"),
    ):
        _add_column(connection, table, column)
    for table in (storage, removed):
        table.create(connection, checkfirst=True)
    connection.execute(update(schema).values(identity=secrets.token_hex(8)))
    connection.execute(update(groups).values(unfetched=groups.c.sessions))
    parts = select(func.sum(func.length(upload_parts.c.part))).where(
        upload_parts.c.session_id == uploads.c.session_id
    )
    came = select(outcomes.c.at).join(sessions, sessions.c.number == outcomes.c.number)
    came = came.where(sessions.c.session_id == uploads.c.session_id)
    connection.execute(
        update(uploads).values(
            size_bytes=func.length(uploads.c.blob) + func.coalesce(parts.scalar_subquery(), 0),
            at=func.coalesce(came.scalar_subquery(), time.time()),
        )
    )
    for index in (GROUPS_FETCHED, OUTCOMES_AT, OUTCOMES_FAILED_BY, UPLOADS_KEY, UPLOADS_STORED, UPLOADS_INSIDE):
        index.create(connection, checkfirst=True)
    total = connection.execute(select(func.count(), func.sum(uploads.c.size_bytes)).select_from(uploads)).one()
    held = {"blobs": total[0], "blob_bytes": total[1] or 0}
    connection.execute(insert(storage).values(EMPTY_STORAGE | held))


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


def _add_scheduling(connection: Connection) -> None:
    """Every task with open sessions joins the queue. Nodes of older Polars have no abilities, and get no more
    sessions; those that they hold end as usual."""
    for table, column in (
        ("nodes", "abilities TEXT"),
        ("sessions", "cancel_reason TEXT NOT NULL DEFAULT ''"),
        ("groups", "running INTEGER NOT NULL DEFAULT 0"),
        ("groups", "usable INTEGER NOT NULL DEFAULT 0"),
        ("groups", "max_running INTEGER"),
        ("groups", "enough INTEGER"),
        ("groups", "on_enough TEXT NOT NULL DEFAULT 'cancel'"),
    ):
        _add_column(connection, table, column)
    for table in (needs, queue):
        table.create(connection, checkfirst=True)
    connection.execute(text("DROP INDEX IF EXISTS sessions_waiting"))
    for index in (SESSIONS_WAITING, NEEDS_WAITING, QUEUE_NEXT):
        index.create(connection, checkfirst=True)
    of_group = groups.c.group_id == func.coalesce(sessions.c.group_id, sessions.c.task_id)
    held = select(func.count()).select_from(sessions).where(IS_HELD, of_group).scalar_subquery()
    trainable = and_(outcomes.c.group_id == groups.c.group_id, outcomes.c.untrainable_reason == "")
    usable = select(func.count()).select_from(outcomes).where(trainable).scalar_subquery()
    connection.execute(update(groups).values(usable=usable))
    connection.execute(update(groups).where(groups.c.unfinished > 0).values(running=held))
    _fill_queue(connection)


def _fill_queue(connection: Connection) -> None:
    is_open = select(sessions.c.task_id).where(IS_OPEN)
    wanted = select(tasks.c.number, tasks.c.task_id, tasks.c.body).where(tasks.c.task_id.in_(is_open))
    for batch in _batches(connection, wanted, tasks.c.number):
        for row in batch:
            task = TaskRequest.model_validate(json.loads(row.body))
            mine = select(func.count()).select_from(sessions).where(sessions.c.task_id == row.task_id)
            waiting = connection.execute(mine.where(IS_WAITING)).scalar_one()
            needs_id = needs_id_of(connection, needs_of(task))
            connection.execute(
                insert(queue).values(
                    task_id=row.task_id,
                    number=row.number,
                    group_id=task.group,
                    needs_id=needs_id,
                    priority=task.priority,
                    waiting=waiting,
                    running=connection.execute(mine.where(IS_HELD)).scalar_one(),
                )
            )
            grown = update(needs).where(needs.c.needs_id == needs_id)
            connection.execute(grown.values(waiting=needs.c.waiting + waiting))


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
    7: _add_access,
    8: _add_scheduling,
    9: _add_blob_store,
}
"""From each older schema version to the next."""
