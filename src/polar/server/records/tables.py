"""The server's tables, the same in SQLite and PostgreSQL. A change of their shape raises `SCHEMA_VERSION`."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    any_,
    case,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
    update,
)

from polar.store.database import StoreError

SCHEMA_VERSION = 6

METADATA = MetaData()

_GROWING = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only by a plain INTEGER

IS_WAITING = text("stage = 'QUEUED' AND lease_expires IS NULL")
IS_HELD = text("lease_expires IS NOT NULL")
IS_OPEN = text("stage NOT IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED')")
"""Literal SQL, not bound values: a partial index serves only a query that repeats its condition exactly."""


def _growing(name: str) -> Column[int]:
    return Column(name, _GROWING, primary_key=True, autoincrement=True)


def _task_id(**options: Any) -> Column[str]:
    return Column("task_id", Text, ForeignKey("tasks.task_id"), nullable=False, **options)


def _session_id(**options: Any) -> Column[str]:
    return Column("session_id", Text, ForeignKey("sessions.session_id"), **options)


schema = Table("polar_server", METADATA, Column("version", Integer, nullable=False))

tasks = Table(
    "tasks",
    METADATA,
    _growing("number"),
    Column("task_id", Text, nullable=False, unique=True),
    Column("group_id", Text, index=True),
    Column("num_samples", Integer, nullable=False),
    Column("callback_url", Text),
    Column("submitted", Float, nullable=False),
    Column("body", Text, nullable=False),  # the TaskRequest as JSON
)

sessions = Table(
    "sessions",
    METADATA,
    _growing("number"),  # the order of submission
    Column("session_id", Text, nullable=False, unique=True),
    _task_id(index=True),
    Column("group_id", Text, index=True),
    Column("index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False, default=1),
    Column("losses", Integer, nullable=False, default=0),  # attempts whose node was lost, not handed back
    Column("stage", Text, nullable=False, default="QUEUED"),
    Column("node_id", Text),  # who holds it, or whose result it has
    Column("lease_expires", Float),  # set exactly while a node holds it
    Column("cancel_requested", Boolean, nullable=False, default=False),
    Column("priority", Integer, nullable=False),
    Column("earlier", Text, nullable=False, default="[]", server_default="[]"),  # `EarlierAttempt`s as JSON
)
Index(
    "sessions_waiting",
    sessions.c.priority.desc(),
    sessions.c.number,
    sqlite_where=IS_WAITING,
    postgresql_where=IS_WAITING,
)
Index("sessions_held", sessions.c.lease_expires, sqlite_where=IS_HELD, postgresql_where=IS_HELD)
_SESSIONS_OPEN = Index(
    "sessions_open",
    sessions.c.task_id,
    sessions.c.stage,  # so that the index alone answers; SQLite would take the one of all sessions of a task
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)
Index("sessions_of_node", sessions.c.node_id, sqlite_where=IS_HELD, postgresql_where=IS_HELD)

results = Table(
    "results",
    METADATA,
    _growing("cursor"),
    _session_id(nullable=False, unique=True),  # one result for each session
    _task_id(),
    Column("group_id", Text),  # of the task, or its id if it names no group; null only while migrating
    Column("body", Text, nullable=False),  # the SessionResult as JSON
    sqlite_autoincrement=True,
)
Index("results_of_task", results.c.task_id, results.c.cursor)
Index("results_of_group", results.c.group_id, results.c.cursor)

groups = Table(
    "groups",
    METADATA,
    Column("group_id", Text, primary_key=True),
    Column("sessions", Integer, nullable=False),
    Column("unfinished", Integer, nullable=False),  # sessions without a result
    Column("cursor", BigInteger, unique=True),  # of its last result; null while a session is unfinished
)

training_runs = Table(
    "training_runs",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("points", Integer, nullable=False),
    Column("last_step", Integer, nullable=False),
    Column("started", Float, nullable=False),
    Column("updated", Float, nullable=False),
)

training_points = Table(
    "training_points",
    METADATA,
    _growing("cursor"),
    Column("run_id", Text, ForeignKey("training_runs.run_id"), nullable=False),
    Column("phase", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("body", Text, nullable=False),  # the TrainingPoint as JSON
    UniqueConstraint("run_id", "phase", "step"),
    sqlite_autoincrement=True,
)
Index("training_points_of_run", training_points.c.run_id, training_points.c.cursor)

uploads = Table(
    "uploads",
    METADATA,
    _session_id(primary_key=True),
    Column("blob", LargeBinary, nullable=False),  # the last part; the others are in upload_parts
)

upload_parts = Table(
    "upload_parts",
    METADATA,
    _session_id(primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("part", LargeBinary, nullable=False),
)

nodes = Table(
    "nodes",
    METADATA,
    Column("node_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("key_sha256", Text, nullable=False),
    Column("registered", Float, nullable=False),
    Column("last_seen", Float, nullable=False),
    Column("generating", Integer, nullable=False, server_default="0"),  # generations under way, as last reported
    Column("heard_revision", Integer),  # of the policy it follows; null: not reported yet
    Column("sick", Text),  # its `Sickness` as JSON; null: it is well
    Column("draining_since", Float),  # null: it gets sessions
)

callbacks = Table(
    "callbacks",
    METADATA,
    _session_id(primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("url", Text, nullable=False),
    Column("target", Text, nullable=False),  # scheme, host and port
    Column("created", Float, nullable=False),
    Column("tries", Integer, nullable=False, default=0),
    Column("due", Float),  # null: delivered or given up
    Column("delivered", Float),
    Column("problem", Text),  # of the last try that failed
)
Index("callbacks_due", callbacks.c.due)

events = Table(
    "events",
    METADATA,
    _growing("cursor"),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("task_id", Text),
    Column("session_id", Text),
    Column("node_id", Text),
    Column("data", Text, nullable=False),
    sqlite_autoincrement=True,
)

policy = Table(
    "policy",
    METADATA,
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)


def among(connection: Connection, column: Column[str], ids: Collection[str]) -> ColumnElement[bool]:
    """`column IN ids` as one bound value: binding each of thousands of ids takes longer than the query."""
    if connection.dialect.name == "postgresql":
        return column == any_(literal(list(ids), ARRAY(Text)))
    return column.in_(select(func.json_each(json.dumps(list(ids))).table_valued("value").c.value))


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
    _SESSIONS_OPEN.create(connection, checkfirst=True)
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


_MIGRATIONS = {
    1: _add_drain,
    2: _add_upload_parts,
    3: _add_earlier_attempts,
    4: _add_groups_and_training,
    5: _add_draining_nodes,
}
"""From each older schema version to the next."""
