"""What retention removes, a batch in each transaction: whole groups, uploads, events.

Each finds its oldest candidates in an index that holds nothing else, so a batch takes the same time however much
the database has. Blobs are deleted after the commit; those that a crash leaves behind are found by `orphans.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, delete, exists, func, or_, select, update

from polar.config import RetentionConfig
from polar.server.overview.stage_counts import count_removed
from polar.server.overview.tables import watched, watched_parts
from polar.server.records.tables import (
    IS_FETCHED,
    IS_STORED,
    among,
    callbacks,
    events,
    groups,
    outcomes,
    results,
    sessions,
    storage,
    tasks,
    upload_parts,
    uploads,
)
from polar.server.records.uploads import count_blobs
from polar.server.retention.gaps import Kind, remember
from polar.server.state import Change

DAY_S = 86400.0
GRACE_S = 600.0
"""An upload stays so long after its result was fetched, whatever `max_blob_bytes` is: its traces are asked for
next."""
SESSIONS_AT_ONCE = 100
GROUPS_AT_ONCE = 50
EVENTS_AT_ONCE = 2000


@dataclass(frozen=True)
class Removal:
    """What one batch removed, or would remove."""

    groups: int = 0
    sessions: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    events: int = 0
    keys: Sequence[str] = field(default=())
    """Blobs to delete in the store."""

    @property
    def anything(self) -> bool:
        return bool(self.groups or self.blobs or self.events)


def remove_groups(change: Change, rules: RetentionConfig, unfetched: bool = False) -> Removal:
    """`unfetched`: also groups that no client has fetched, because an operator said so."""
    if rules.results_days is None:
        return Removal()
    query = _old_groups(change.now - rules.results_days * DAY_S, unfetched).limit(GROUPS_AT_ONCE)
    rows = _bounded(change.connection.execute(query).all())
    return _remove(change, rows) if rows else Removal()


def _old_groups(before: float, unfetched: bool) -> Select[Any, Any, Any]:
    """Done, the oldest first. Those whose callbacks are under way stay."""
    under_way = (
        select(callbacks.c.session_id)
        .join(results, results.c.session_id == callbacks.c.session_id)
        .where(results.c.group_id == groups.c.group_id, callbacks.c.due.is_not(None))
    )
    query = (
        select(groups.c.group_id, groups.c.cursor, groups.c.sessions)
        .join(outcomes, outcomes.c.cursor == groups.c.cursor)
        .where(groups.c.cursor.is_not(None), outcomes.c.at < before, ~exists(under_way))
        .order_by(groups.c.cursor)
    )
    return query if unfetched else query.where(IS_FETCHED)


def _bounded(rows: Sequence[Any]) -> Sequence[Any]:
    """The first of them, at least one, with few enough sessions for a short transaction."""
    total = 0
    for count, row in enumerate(rows):
        total += row.sessions
        if count and total > SESSIONS_AT_ONCE:
            return rows[:count]
    return rows


def _remove(change: Change, rows: Sequence[Any]) -> Removal:
    connection = change.connection
    cursor_of: dict[str, int] = {row.group_id: row.cursor for row in rows}
    names = list(cursor_of)
    group_of_task = func.coalesce(tasks.c.group_id, tasks.c.task_id).label("name")
    named = or_(among(connection, tasks.c.group_id, names), among(connection, tasks.c.task_id, names))
    found = connection.execute(select(tasks.c.task_id, group_of_task).where(named)).all()
    of_task = {task_id: name for task_id, name in found if name in cursor_of}
    mine = among(connection, sessions.c.task_id, list(of_task))
    members = connection.execute(
        select(sessions.c.session_id, sessions.c.number, sessions.c.stage).where(mine)
    ).all()
    ids = [row.session_id for row in members]
    stored = _stored(connection, ids)
    for table in (callbacks, upload_parts, uploads, watched_parts, watched, results):
        connection.execute(delete(table).where(among(connection, table.c.session_id, ids)))
    connection.execute(delete(outcomes).where(outcomes.c.number.in_([row.number for row in members])))
    connection.execute(delete(sessions).where(mine))
    connection.execute(delete(tasks).where(among(connection, tasks.c.task_id, list(of_task))))
    connection.execute(delete(groups).where(among(connection, groups.c.group_id, names)))
    count_removed(change, [row.stage for row in members])
    count_blobs(change, -stored.blobs, -stored.blob_bytes)
    last = max(cursor_of.values())
    grown = update(storage).where(storage.c.results_removed < last)
    connection.execute(grown.values(results_removed=last))
    names_of: list[tuple[Kind, str, int]] = [("group", name, cursor) for name, cursor in cursor_of.items()]
    of_tasks: list[tuple[Kind, str, int]] = [("task", each, cursor_of[name]) for each, name in of_task.items()]
    remember(change, names_of + of_tasks)
    return Removal(len(names), len(ids), stored.blobs, stored.blob_bytes, keys=stored.keys)


def _stored(connection: Connection, session_ids: Sequence[str]) -> Removal:
    query = select(uploads.c.blob_key, uploads.c.size_bytes).where(uploads.c.size_bytes > 0)
    rows = connection.execute(query.where(among(connection, uploads.c.session_id, session_ids))).all()
    keys = [row.blob_key for row in rows if row.blob_key is not None]
    return Removal(blobs=len(rows), blob_bytes=sum(row.size_bytes for row in rows), keys=keys)


def remove_blobs(change: Change, rules: RetentionConfig) -> Removal:
    """Of fetched results: those that are too old, and the oldest while all together are too large."""
    oldest = (
        select(uploads.c.session_id, uploads.c.size_bytes, uploads.c.at, uploads.c.fetched)
        .where(IS_STORED)
        .order_by(uploads.c.at)
        .limit(SESSIONS_AT_ONCE)
    )
    excess = _excess(change.connection, rules)
    old = change.now - rules.blobs_days * DAY_S if rules.blobs_days is not None else None
    if not excess and old is None:
        return Removal()
    chosen: list[str] = []
    for row in change.connection.execute(oldest):
        too_much = excess > 0 and row.fetched <= change.now - GRACE_S
        if too_much or (old is not None and row.at < old):
            chosen.append(row.session_id)
            excess -= row.size_bytes
    return _drop_blobs(change, chosen) if chosen else Removal()


def _excess(connection: Connection, rules: RetentionConfig) -> int:
    if rules.max_blob_bytes is None:
        return 0
    held = connection.execute(select(storage.c.blob_bytes)).scalar_one()
    return max(0, held - rules.max_blob_bytes)


def _drop_blobs(change: Change, session_ids: Sequence[str]) -> Removal:
    """The row stays: it says that the upload was removed."""
    stored = _stored(change.connection, session_ids)
    mine = among(change.connection, uploads.c.session_id, session_ids)
    change.connection.execute(update(uploads).where(mine).values(blob=b"", blob_key=None, size_bytes=0))
    parts = among(change.connection, upload_parts.c.session_id, session_ids)
    change.connection.execute(delete(upload_parts).where(parts))
    count_blobs(change, -stored.blobs, -stored.blob_bytes)
    return stored


def remove_events(change: Change, rules: RetentionConfig) -> Removal:
    if rules.events_days is None:
        return Removal()
    oldest = select(events.c.cursor, events.c.at).order_by(events.c.cursor).limit(EVENTS_AT_ONCE)
    old: list[int] = []
    for row in change.connection.execute(oldest):
        if row.at >= change.now - rules.events_days * DAY_S:
            break
        old.append(row.cursor)
    if not old:
        return Removal()
    change.connection.execute(delete(events).where(events.c.cursor <= old[-1]))
    change.connection.execute(update(storage).values(events_removed=old[-1]))
    return Removal(events=len(old))


def forecast(connection: Connection, now: float, rules: RetentionConfig, unfetched: bool = False) -> Removal:
    """What could be removed now. It counts, so its time grows with that."""
    found = Removal()
    if rules.results_days is not None:
        chosen = _old_groups(now - rules.results_days * DAY_S, unfetched).order_by(None).subquery()
        count, members = connection.execute(select(func.count(), func.sum(chosen.c.sessions))).one()
        held = select(func.count(), func.sum(uploads.c.size_bytes)).where(
            uploads.c.size_bytes > 0,
            uploads.c.session_id.in_(
                select(results.c.session_id).where(results.c.group_id.in_(select(chosen.c.group_id)))
            ),
        )
        blobs, size = connection.execute(held).one()
        found = Removal(count, members or 0, blobs, size or 0)
    if rules.blobs_days is not None:
        old = (IS_STORED, uploads.c.at < now - rules.blobs_days * DAY_S)
        blobs, size = connection.execute(select(func.count(), func.sum(uploads.c.size_bytes)).where(*old)).one()
        found = _larger(found, blobs, size or 0)
    found = _larger(found, found.blobs, _excess(connection, rules))
    if rules.events_days is None:
        return found
    count = connection.execute(
        select(func.count()).where(events.c.at < now - rules.events_days * DAY_S)
    ).scalar_one()
    return Removal(found.groups, found.sessions, found.blobs, found.blob_bytes, count)


def _larger(found: Removal, blobs: int, blob_bytes: int) -> Removal:
    """Several rules may want the same blobs."""
    most = (max(found.blobs, blobs), max(found.blob_bytes, blob_bytes))
    return Removal(found.groups, found.sessions, *most, found.events)
