"""Cancelling: a queued session ends at once; a leased one when its node has read its next heartbeat reply."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import ColumnElement, and_, func, or_, select, update

from polar.server.errors import not_found
from polar.server.records.results import finish, server_result
from polar.server.records.sessions import rows_of
from polar.server.records.tables import sessions
from polar.server.state import Change
from polar.types import FINAL_STAGES, Stage


def cancel(change: Change, kind: Literal["session", "task", "group"], name: str) -> int:
    """Returns how many sessions had not ended."""
    named = _named(kind, name)
    if change.connection.execute(select(sessions.c.session_id).where(named).limit(1)).first() is None:
        raise not_found(kind, name)
    wanted = (named, sessions.c.stage.not_in(sorted(FINAL_STAGES)))
    rows = rows_of(change.connection, select(sessions).where(*wanted).order_by(sessions.c.number))
    finish(change, [server_result(row, Stage.CANCELLED) for row in rows if row.lease_expires is None])
    first = func.coalesce(sessions.c.cancelled, change.now)
    change.connection.execute(update(sessions).where(*wanted).values(cancel_requested=True, cancelled=first))
    return len(rows)


def _named(kind: Literal["session", "task", "group"], name: str) -> ColumnElement[bool]:
    if kind == "group":  # a task that names no group is a group of its own
        alone = and_(sessions.c.group_id.is_(None), sessions.c.task_id == name)
        return or_(sessions.c.group_id == name, alone)
    return (sessions.c.session_id if kind == "session" else sessions.c.task_id) == name
