"""Cancelling: a queued session ends at once; a leased one when its node has read its next heartbeat reply."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import select, update

from polar.server.errors import not_found
from polar.server.records.results import finish, server_result
from polar.server.records.sessions import rows_of
from polar.server.records.tables import sessions, tasks
from polar.server.state import Change
from polar.types import FINAL_STAGES, Stage

_NAMED_BY = {"session": sessions.c.session_id, "task": tasks.c.task_id, "group": tasks.c.group_id}


def cancel(change: Change, kind: Literal["session", "task", "group"], name: str) -> int:
    """Returns how many sessions had not ended."""
    column = _NAMED_BY[kind]
    if change.connection.execute(select(column).where(column == name).limit(1)).first() is None:
        raise not_found(kind, name)
    wanted = (sessions.c[column.name] == name, sessions.c.stage.not_in(sorted(FINAL_STAGES)))
    rows = rows_of(change.connection, select(sessions).where(*wanted).order_by(sessions.c.number))
    finish(change, [server_result(row, Stage.CANCELLED) for row in rows if row.lease_expires is None])
    change.connection.execute(update(sessions).where(*wanted).values(cancel_requested=True))
    return len(rows)
