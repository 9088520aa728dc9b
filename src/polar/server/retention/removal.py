"""What retention removes, a batch in each transaction: whole groups, uploads, events.

Each finds its oldest candidates in an index that holds nothing else, so a batch takes the same time however much
the database has. Blobs are deleted after the commit; those that a crash leaves behind are found by `orphans.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, or_, select, true, update

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
"""A result and its upload stay so long after either was fetched, however old they are: traces are asked for next,
or calls."""
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
    query = _old_groups(change.now, rules.results_days, unfetched).limit(GROUPS_AT_ONCE)
    rows = _bounded(change.connection.execute(query).all())
    return _remove(change, rows) if rows else Removal()


def _old_groups(now: float, days: float, unfetched: bool) -> Select[Any, Any, Any]:
    """Done, the oldest first. Those whose callbacks are under way stay, and those that were fetched just now."""
    before, of_group = now - days * DAY_S, results.c.group_id == groups.c.group_id
    # Only so far: young groups are many, and none of them is looked at. Results without a time are from before all
    # others.
    newest = (outcomes.c.at.desc(), outcomes.c.cursor.desc())
    last = select(outcomes.c.cursor).where(outcomes.c.at < before).order_by(*newest).limit(1).scalar_subquery()
    under_way = (
        select(callbacks.c.session_id)
        .join(results, results.c.session_id == callbacks.c.session_id)
        .where(of_group, callbacks.c.due.is_not(None))
    )
    just_fetched = (
        select(results.c.cursor)
        .outerjoin(uploads, uploads.c.session_id == results.c.session_id)
        .where(of_group, or_(results.c.fetched > now - GRACE_S, uploads.c.fetched > now - GRACE_S))
    )
    query = (
        select(groups.c.group_id, groups.c.cursor, groups.c.sessions)
        .join(outcomes, outcomes.c.cursor == groups.c.cursor)
        .where(groups.c.cursor <= last, or_(outcomes.c.at.is_(None), outcomes.c.at < before))
        .where(~exists(under_way), ~exists(just_fetched))
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
    members = connection.execute(select(sessions.c.session_id, sessions.c.stage).where(mine)).all()
    ids = [row.session_id for row in members]
    stored = _stored(connection, ids)
    for table in (callbacks, upload_parts, uploads, watched_parts, watched, results):
        connection.execute(delete(table).where(among(connection, table.c.session_id, ids)))
    connection.execute(delete(outcomes).where(outcomes.c.number.in_(select(sessions.c.number).where(mine))))
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
    excess, before = _excess(change.connection, rules), _before(change.now, rules.blobs_days)
    columns = (uploads.c.session_id, uploads.c.size_bytes, uploads.c.at)
    oldest = select(*columns).where(_removable(change.now)).order_by(uploads.c.at).limit(SESSIONS_AT_ONCE)
    chosen: list[str] = []
    for row in change.connection.execute(oldest if excess else oldest.where(uploads.c.at < before)):
        if excess > 0 or row.at < before:
            chosen.append(row.session_id)
            excess -= row.size_bytes
    return _drop_blobs(change, chosen) if chosen else Removal()


def _removable(now: float) -> ColumnElement[bool]:
    return and_(IS_STORED, uploads.c.fetched <= now - GRACE_S)


def _before(now: float, days: float | None) -> float:
    """0: nothing is as old."""
    return 0.0 if days is None else now - days * DAY_S


def _excess(connection: Connection, rules: RetentionConfig, gone_bytes: int = 0) -> int:
    if rules.max_blob_bytes is None:
        return 0
    held = connection.execute(select(storage.c.blob_bytes)).scalar_one()
    return max(0, held - gone_bytes - rules.max_blob_bytes)


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
    """What would be removed now. It counts, so its time grows with that."""
    whole, rest = _forecast_groups(connection, now, rules, unfetched)
    blobs, size = _forecast_blobs(connection, now, rules, whole, rest)
    if rules.events_days is None:
        return Removal(whole.groups, whole.sessions, whole.blobs + blobs, whole.blob_bytes + size)
    young = select(func.min(events.c.cursor)).where(events.c.at >= _before(now, rules.events_days))
    first = young.scalar_subquery()
    old = select(func.count()).select_from(events).where(or_(first.is_(None), events.c.cursor < first))
    count = connection.execute(old).scalar_one()
    return Removal(whole.groups, whole.sessions, whole.blobs + blobs, whole.blob_bytes + size, count)


def _forecast_groups(
    connection: Connection, now: float, rules: RetentionConfig, unfetched: bool
) -> tuple[Removal, ColumnElement[bool]]:
    """Also which uploads are not theirs."""
    if rules.results_days is None:
        return Removal(), true()
    chosen = _old_groups(now, rules.results_days, unfetched).order_by(None).subquery()
    count, members = connection.execute(select(func.count(), func.sum(chosen.c.sessions))).one()
    theirs = select(results.c.session_id).where(results.c.group_id.in_(select(chosen.c.group_id)))
    held = select(func.count(), func.sum(uploads.c.size_bytes)).where(uploads.c.size_bytes > 0)
    blobs, size = connection.execute(held.where(uploads.c.session_id.in_(theirs))).one()
    return Removal(count, int(members or 0), blobs, int(size or 0)), uploads.c.session_id.not_in(theirs)


def _forecast_blobs(
    connection: Connection, now: float, rules: RetentionConfig, whole: Removal, rest: ColumnElement[bool]
) -> tuple[int, int]:
    size = uploads.c.size_bytes
    older = func.sum(size).over(order_by=(uploads.c.at, uploads.c.session_id)) - size
    found = select(uploads.c.at, size, older.label("older")).where(_removable(now), rest).subquery()
    excess, before = _excess(connection, rules, whole.blob_bytes), _before(now, rules.blobs_days)
    gone = or_(found.c.older < excess, found.c.at < before)
    blobs, total = connection.execute(select(func.count(), func.sum(found.c.size_bytes)).where(gone)).one()
    return blobs, int(total or 0)
