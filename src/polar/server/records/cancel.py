"""Cancelling: a queued session ends at once; a leased one when its node has read its next heartbeat reply."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import ColumnElement, select

from polar.server.errors import not_found
from polar.server.records.results import cancel_open, of_group
from polar.server.records.tables import sessions
from polar.server.state import Change


def cancel(change: Change, kind: Literal["session", "task", "group"], name: str) -> int:
    """Returns how many sessions had not ended."""
    named = _named(kind, name)
    if change.connection.execute(select(sessions.c.session_id).where(named).limit(1)).first() is None:
        raise not_found(kind, name)
    rows = cancel_open(change, named)
    change.detail["sessions"] = len(rows)
    return len(rows)


def _named(kind: Literal["session", "task", "group"], name: str) -> ColumnElement[bool]:
    if kind == "group":
        return of_group(name)
    return (sessions.c.session_id if kind == "session" else sessions.c.task_id) == name
