"""The server's tables, the same in SQLite and PostgreSQL. A change of their shape raises `SCHEMA_VERSION` and has
its step in `server/migrations.py`."""

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
    func,
    literal,
    select,
    text,
)

SCHEMA_VERSION = 7

METADATA = MetaData()

_GROWING = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only by a plain INTEGER

IS_WAITING = text("stage = 'QUEUED' AND lease_expires IS NULL")
IS_HELD = text("lease_expires IS NOT NULL")
IS_OPEN = text("stage NOT IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED')")
HAS_FAILED = text("failed_by <> ''")
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
    Column("budgets", Text, nullable=False, server_default="{}"),  # its `Budgets` as JSON: the body may be large
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
    Column("harness", Text, nullable=False, server_default=""),  # by name, as `runtime`
    Column("runtime", Text, nullable=False, server_default=""),
    Column("since", Float),  # when it came into its stage; null: before the database knew
    Column("leased", Float),  # when its node got it; null: no node holds it
    Column("waited_s", Float, nullable=False, server_default="0"),  # for the model, in RUNNING
    Column("cancelled", Float),  # when a client asked to cancel it
)
Index(
    "sessions_waiting",
    sessions.c.priority.desc(),
    sessions.c.number,
    sqlite_where=IS_WAITING,
    postgresql_where=IS_WAITING,
)
Index("sessions_held", sessions.c.lease_expires, sqlite_where=IS_HELD, postgresql_where=IS_HELD)
SESSIONS_OPEN = Index(
    "sessions_open",
    sessions.c.task_id,
    sessions.c.stage,  # so that the index alone answers; SQLite would take the one of all sessions of a task
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)
Index("sessions_of_node", sessions.c.node_id, sqlite_where=IS_HELD, postgresql_where=IS_HELD)
OPEN_INDEXES = tuple(
    Index(f"sessions_open_{name}", *columns, sqlite_where=IS_OPEN, postgresql_where=IS_OPEN)
    for name, columns in {
        "newest": (sessions.c.number,),
        "in_stage": (sessions.c.stage, sessions.c.number),
        "of_harness": (sessions.c.harness, sessions.c.number),
    }.items()
)
"""For lists of sessions without a result; those of the others are in the indexes of `outcomes`. An index of all
sessions by stage or node would mislead SQLite's planner when it looks for sessions to lease."""

stage_counts = Table(
    "stage_counts",
    METADATA,
    Column("stage", Text, primary_key=True),
    Column("sessions", BigInteger, nullable=False),
)

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

outcomes = Table(
    "outcomes",
    METADATA,
    # The session's, so that a list by outcome is in the order of submission.
    Column("number", _GROWING, ForeignKey("sessions.number"), primary_key=True, autoincrement=False),
    Column("cursor", BigInteger, nullable=False, unique=True),  # of the result
    Column("session_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),  # of the task, or its id
    Column("node_id", Text),
    Column("harness", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("reward", Float),
    Column("untrainable_reason", Text, nullable=False),
    Column("failed_by", Text, nullable=False),  # agent, infrastructure, or empty
    Column("failure_where", Text, nullable=False),
    Column("failure_type", Text, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("traces", BigInteger, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
    Column("append_only_pairs", BigInteger, nullable=False),
    Column("merged_pairs", BigInteger, nullable=False),
    Column("policy_updates", BigInteger, nullable=False),
    Column("stale", Boolean, nullable=False),
    Column("health", Text),
    Column("run_s", Float),  # null: it never ran
    Column("at", Float),  # null: recorded before this table existed
)
Index("outcomes_of_group", outcomes.c.group_id, outcomes.c.cursor)
Index("outcomes_failed", outcomes.c.number, sqlite_where=HAS_FAILED, postgresql_where=HAS_FAILED)
Index(
    "outcomes_of_failure",
    outcomes.c.failure_type,
    outcomes.c.number,
    sqlite_where=HAS_FAILED,
    postgresql_where=HAS_FAILED,
)
Index("outcomes_untrainable", outcomes.c.untrainable_reason, outcomes.c.number)
Index("outcomes_in_stage", outcomes.c.stage, outcomes.c.number)
Index("outcomes_of_harness", outcomes.c.harness, outcomes.c.number)
Index("outcomes_at_node", outcomes.c.node_id, outcomes.c.number)

groups = Table(
    "groups",
    METADATA,
    Column("group_id", Text, primary_key=True),
    Column("sessions", Integer, nullable=False),
    Column("unfinished", Integer, nullable=False),  # sessions without a result
    Column("cursor", BigInteger, unique=True),  # of its last result; null while a session is unfinished
    Column("number", BigInteger),  # the order in which groups began; null only while migrating
)
GROUPS_NEWEST = Index("groups_newest", groups.c.number, unique=True)

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
    Column("uses", Text, nullable=False, server_default="[]"),  # its newest `EngineUse`s with their times, as JSON
    Column("log_number", Integer, nullable=False, server_default="0"),  # of the next log line it has to send
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

log_lines = Table(
    "log_lines",
    METADATA,
    _growing("cursor"),
    Column("at", Float, nullable=False),
    Column("level", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("session_id", Text),
    sqlite_autoincrement=True,
)

watched = Table(
    "watched",
    METADATA,
    _session_id(primary_key=True),
    Column("until", Float, nullable=False),  # when its node need not upload any more
    Column("attempt", Integer),  # of the upload; null: there is none yet
    Column("version", BigInteger, nullable=False, server_default="0"),  # of the upload
    Column("parts", Integer, nullable=False, server_default="0"),
)

watched_parts = Table(
    "watched_parts",
    METADATA,
    _session_id(primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("part", LargeBinary, nullable=False),
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
