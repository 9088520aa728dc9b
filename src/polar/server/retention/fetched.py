"""Which results and uploads somebody has: sent to a client that asked for them, or delivered by a callback.

Retention removes nothing else, and nothing that was fetched a moment ago. An upload counts as fetched with its
result, except in a page of groups: the client reads their traces one group after the other, and may train between
them. These uploads count when they are read, or when a client asks for the groups that come after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Table, and_, bindparam, or_, select, update

from polar.server.records.tables import among, groups, results, uploads
from polar.server.state import Change

_IS_UNREAD = and_(uploads.c.size_bytes > 0, uploads.c.fetched.is_(None))


def mark_results(change: Change, cursors: Sequence[int]) -> None:
    _mark(change, results.c.cursor.in_(cursors))


def mark_sessions(change: Change, session_ids: Sequence[str]) -> None:
    _mark(change, among(change.connection, results.c.session_id, session_ids))


def mark_groups(change: Change, group_ids: Sequence[str], cursor: int) -> None:
    """A page of groups was sent. `cursor`: of its last group; a group may have gained results since."""
    new = among(change.connection, results.c.group_id, group_ids)
    new &= (results.c.cursor <= cursor) & results.c.fetched.is_(None)
    _mark(change, new & uploads.c.session_id.is_(None))  # there is nothing to read
    change.connection.execute(update(results).where(new).values(fetched=change.now))


def mark_groups_before(change: Change, after: int, limit: int, group_ids: Sequence[str] | None) -> None:
    """A client asks for groups after this cursor: it is through with the page before. Groups that were never sent
    stay unfetched. `limit`: of the page; `group_ids`: those that the client follows, None: all."""
    passed = select(groups.c.group_id, groups.c.unfetched).where(groups.c.cursor <= after)
    if group_ids is not None:
        passed = passed.where(among(change.connection, groups.c.group_id, group_ids))
    page = passed.order_by(groups.c.cursor.desc()).limit(limit).subquery()
    unread = select(page.c.group_id).where(page.c.unfetched > 0)
    if names := change.connection.execute(unread).scalars().all():
        sent = results.c.fetched.is_not(None)
        _mark(change, among(change.connection, results.c.group_id, names) & sent)


def _mark(change: Change, chosen: ColumnElement[bool]) -> None:
    """Results with their uploads; those that were fetched before keep their time. `chosen`: of either."""
    query = select(results.c.session_id, results.c.group_id, results.c.fetched)
    query = query.outerjoin(uploads, uploads.c.session_id == results.c.session_id)
    rows = change.connection.execute(query.where(chosen, or_(results.c.fetched.is_(None), _IS_UNREAD))).all()
    if not rows:
        return
    _note(change, results, [row.session_id for row in rows if row.fetched is None])
    _note(change, uploads, [row.session_id for row in rows])
    change.connection.execute(
        update(groups)
        .where(groups.c.group_id == bindparam("this"))
        .values(unfetched=groups.c.unfetched - bindparam("new")),
        [{"this": group, "new": count} for group, count in Counter(row.group_id for row in rows).items()],
    )


def _note(change: Change, table: Table, session_ids: Sequence[str]) -> None:
    if session_ids:
        mine = among(change.connection, table.c.session_id, session_ids)
        change.connection.execute(update(table).where(mine).values(fetched=change.now))
