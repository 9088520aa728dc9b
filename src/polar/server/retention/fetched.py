"""Which results somebody has: sent to a client that asked for them, or delivered by a callback.

Retention removes nothing else, and nothing that was fetched a moment ago. A client that dies after its page was
sent has the time of the retention to ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, bindparam, update

from polar.server.records.tables import among, groups, results, uploads
from polar.server.state import Change


def mark_results(change: Change, cursors: Sequence[int]) -> None:
    _mark(change, results.c.cursor.in_(cursors))


def mark_sessions(change: Change, session_ids: Sequence[str]) -> None:
    _mark(change, among(change.connection, results.c.session_id, session_ids))


def mark_groups(change: Change, group_ids: Sequence[str], cursor: int) -> None:
    """`cursor`: of the last group that was sent. A group may have gained results since."""
    _mark(change, among(change.connection, results.c.group_id, group_ids) & (results.c.cursor <= cursor))


def _mark(change: Change, chosen: ColumnElement[bool]) -> None:
    new = (
        update(results)
        .where(chosen, results.c.fetched.is_(None))
        .values(fetched=change.now)
        .returning(results.c.session_id, results.c.group_id)
    )
    rows = change.connection.execute(new).all()
    if not rows:
        return
    of_them = among(change.connection, uploads.c.session_id, [row.session_id for row in rows])
    change.connection.execute(update(uploads).where(of_them).values(fetched=change.now))
    change.connection.execute(
        update(groups)
        .where(groups.c.group_id == bindparam("this"))
        .values(unfetched=groups.c.unfetched - bindparam("new")),
        [{"this": group, "new": count} for group, count in Counter(row.group_id for row in rows).items()],
    )
