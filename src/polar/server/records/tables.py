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

SCHEMA_VERSION = 10

METADATA = MetaData()

_GROWING = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only by a plain INTEGER

IS_WAITING = text("stage = 'QUEUED' AND lease_expires IS NULL")
IS_HELD = text("lease_expires IS NOT NULL")
IS_OPEN = text("stage NOT IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED')")
HAS_FAILED = text("failed_by <> ''")
HAS_WAITING = text("waiting > 0")
IS_FETCHED = text("unfetched = 0")
IS_STORED = text("size_bytes > 0 AND fetched IS NOT NULL")
IS_INSIDE = text("size_bytes > 0 AND blob_key IS NULL")
"""Literal SQL, not bound values: a partial index serves only a query that repeats its condition exactly."""


def growing(name: str) -> Column[int]:
    return Column(name, _GROWING, primary_key=True, autoincrement=True)


def _task_id(**options: Any) -> Column[str]:
    return Column("task_id", Text, ForeignKey("tasks.task_id"), nullable=False, **options)


def session_id_column(**options: Any) -> Column[str]:
    return Column("session_id", Text, ForeignKey("sessions.session_id"), **options)


schema = Table(
    "polar_server",
    METADATA,
    Column("version", Integer, nullable=False),
    Column(
        "identity", Text
    ),  # random: the blobs of this database have it in their keys; null only while migrating
)

tasks = Table(
    "tasks",
    METADATA,
    growing("number"),
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
    growing("number"),  # the order of submission
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
    Column("cancelled", Float),  # when a client, or the server itself, asked to cancel it
    Column("cancel_reason", Text, nullable=False, server_default=""),  # of the server; empty: a client asked
)
SESSIONS_WAITING = Index(
    "sessions_waiting_of_task",
    sessions.c.task_id,
    sessions.c.stage,  # so that SQLite prefers it to the index of all sessions of a task, most of which have ended
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

needs = Table(
    "needs",
    METADATA,
    growing("needs_id"),
    Column("digest", Text, nullable=False, unique=True),
    Column("body", Text, nullable=False),  # `SessionNeeds` as JSON
    Column("waiting", Integer, nullable=False),  # sessions with these needs that no node has
)
NEEDS_WAITING = Index("needs_waiting", needs.c.needs_id, sqlite_where=HAS_WAITING, postgresql_where=HAS_WAITING)

queue = Table(
    "queue",
    METADATA,
    Column("task_id", Text, ForeignKey("tasks.task_id"), primary_key=True),
    Column("number", BigInteger, nullable=False),  # the task's: the order of submission
    Column("group_id", Text, nullable=False),  # of the task, or its id
    Column("needs_id", BigInteger, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("max_running", Integer),
    Column("waiting", Integer, nullable=False),  # sessions that no node has
    Column("running", Integer, nullable=False, server_default="0"),  # sessions that a node holds
    Column("turn", BigInteger, nullable=False, server_default="0"),  # its place in line
    Column("in_turn", Integer, nullable=False, server_default="0"),  # sessions leased in this turn
)
"""One row for each task with sessions that have not ended. A lease finds tasks here, and then only the sessions of
those that it chose."""
QUEUE_NEXT = Index(
    "queue_next",
    queue.c.priority.desc(),
    queue.c.turn,
    queue.c.number,
    sqlite_where=HAS_WAITING,
    postgresql_where=HAS_WAITING,
)

Index("queue_turns", queue.c.priority, queue.c.turn)  # for the last turn of a priority

stage_counts = Table(
    "stage_counts",
    METADATA,
    Column("stage", Text, primary_key=True),
    Column("sessions", BigInteger, nullable=False),
)

results = Table(
    "results",
    METADATA,
    growing("cursor"),
    session_id_column(nullable=False, unique=True),  # one result for each session
    _task_id(),
    Column("group_id", Text),  # of the task, or its id if it names no group; null only while migrating
    Column("body", Text, nullable=False),  # the SessionResult as JSON
    Column("fetched", Float),  # when a client first got it, or its callback was delivered
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
OUTCOMES_FAILED_BY = Index(
    "outcomes_failed_by",
    outcomes.c.failed_by,
    outcomes.c.number,
    sqlite_where=HAS_FAILED,
    postgresql_where=HAS_FAILED,
)
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
OUTCOMES_AT = Index("outcomes_at", outcomes.c.at, outcomes.c.cursor)

groups = Table(
    "groups",
    METADATA,
    Column("group_id", Text, primary_key=True),
    Column("sessions", Integer, nullable=False),
    Column("unfinished", Integer, nullable=False),  # sessions without a result
    Column("cursor", BigInteger, unique=True),  # of its last result; null while a session is unfinished
    Column("number", BigInteger),  # the order in which groups began; null only while migrating
    Column("running", Integer, nullable=False, server_default="0"),  # sessions that a node holds
    Column("usable", Integer, nullable=False, server_default="0"),  # sessions that are trainable
    Column("max_running", Integer),  # null: any number
    Column("enough", Integer),  # at so many usable sessions the others are cancelled; null: never
    Column("on_enough", Text, nullable=False, server_default="cancel"),
    Column("unfetched", Integer, nullable=False, server_default="0"),  # whose result or upload no client has
)
GROUPS_NEWEST = Index("groups_newest", groups.c.number, unique=True)
GROUPS_FETCHED = Index("groups_fetched", groups.c.cursor, sqlite_where=IS_FETCHED, postgresql_where=IS_FETCHED)

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
    growing("cursor"),
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
    session_id_column(primary_key=True),
    Column("blob", LargeBinary, nullable=False),  # the last part; the others are in upload_parts; empty with a key
    Column("blob_key", Text),  # in the blob store; null: the blob is in this database
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),  # as stored; 0: retention removed it
    Column("at", Float),  # when it came; null only while migrating
    Column("fetched", Float),  # as the result's; after a page of groups null until it is read
)
UPLOADS_KEY = Index("uploads_key", uploads.c.blob_key, unique=True)
UPLOADS_STORED = Index("uploads_stored", uploads.c.at, sqlite_where=IS_STORED, postgresql_where=IS_STORED)
UPLOADS_INSIDE = Index("uploads_inside", uploads.c.session_id, sqlite_where=IS_INSIDE, postgresql_where=IS_INSIDE)

upload_parts = Table(
    "upload_parts",
    METADATA,
    session_id_column(primary_key=True),
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
    Column("old_key_sha256", Text),  # its key before the last; null: there is none
    Column("old_key_expires", Float),
    Column("abilities", Text),  # its `NodeAbilities` as JSON; null: it registered at an older Polar
)

callbacks = Table(
    "callbacks",
    METADATA,
    session_id_column(primary_key=True),
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
    growing("cursor"),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("task_id", Text),
    Column("session_id", Text),
    Column("node_id", Text),
    Column("data", Text, nullable=False),
    sqlite_autoincrement=True,
)

storage = Table(
    "storage",
    METADATA,
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("blobs", BigInteger, nullable=False),  # uploads that are stored
    Column("blob_bytes", BigInteger, nullable=False),
    Column("results_removed", BigInteger, nullable=False),  # the last cursor of a result that retention removed
    Column("events_removed", BigInteger, nullable=False),
)

removed = Table(
    "removed",
    METADATA,
    Column("kind", Text, primary_key=True),  # task or group
    Column("name", Text, primary_key=True),
    Column("cursor", BigInteger, nullable=False),  # of the last result of its group
    Column("at", Float, nullable=False),
)
REMOVED_AT = Index("removed_at", removed.c.at)

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
