"""Cancelling: a queued session ends at once; a leased one when its node has read its next heartbeat reply."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from polar.server.errors import not_found
from polar.server.records.results import finish, server_result
from polar.server.records.sessions import rows_of
from polar.server.records.tables import sessions, tasks
from polar.server.state import Change
from polar.types import FINAL_STAGES, Stage

_NOT_FINAL = sessions.c.stage.not_in(sorted(FINAL_STAGES))


def cancel_session(change: Change, session_id: str) -> int:
    _refuse_unknown(change.connection, "session", sessions.c.session_id, session_id)
    return _cancel(change, sessions.c.session_id == session_id)


def cancel_task(change: Change, task_id: str) -> int:
    _refuse_unknown(change.connection, "task", tasks.c.task_id, task_id)
    return _cancel(change, sessions.c.task_id == task_id)


def cancel_group(change: Change, group_id: str) -> int:
    _refuse_unknown(change.connection, "group", tasks.c.group_id, group_id)
    return _cancel(change, sessions.c.group_id == group_id)


def _cancel(change: Change, which: ColumnElement[bool]) -> int:
    """Returns how many of them had not ended."""
    rows = rows_of(change.connection, select(sessions).where(which, _NOT_FINAL).order_by(sessions.c.number))
    finish(change, [server_result(row, Stage.CANCELLED) for row in rows if row.lease_expires is None])
    change.connection.execute(update(sessions).where(which, _NOT_FINAL).values(cancel_requested=True))
    return len(rows)


def _refuse_unknown(connection: Connection, kind: str, column: Any, name: str) -> None:
    if connection.execute(select(column).where(column == name).limit(1)).first() is None:
        raise not_found(kind, name)
