"""Sessions as anybody may see them."""

from __future__ import annotations

from sqlalchemy import Connection, select

from polar.server.records.rows import SessionRow, row_of, rows_of
from polar.server.records.tables import results, sessions
from polar.server.records.tasks import request_of
from polar.types import Lease, Session, SessionResult, SessionStatus, Stage


def status(connection: Connection, session_id: str) -> SessionStatus:
    """With its result, where it has one."""
    row = row_of(connection, session_id)
    body = connection.execute(
        select(results.c.body).where(results.c.session_id == session_id)
    ).scalar_one_or_none()
    return _status(row, None if body is None else SessionResult.model_validate_json(body))


def listing(connection: Connection, task_id: str | None, stage: Stage | None, limit: int) -> list[SessionStatus]:
    """In the order of submission, without results."""
    query = select(sessions).order_by(sessions.c.number).limit(limit)
    if task_id is not None:
        query = query.where(sessions.c.task_id == task_id)
    if stage is not None:
        query = query.where(sessions.c.stage == stage.value)
    return [_status(row, None) for row in rows_of(connection, query)]


def lease_of(connection: Connection, session_id: str) -> Lease:
    row = row_of(connection, session_id)
    return Lease(session=session_from(row, row.node_id), task=request_of(connection, row.task_id))


def session_from(row: SessionRow, node_id: str | None) -> Session:
    return Session(
        session_id=row.session_id,
        task_id=row.task_id,
        index=row.index,
        attempt=row.attempt,
        stage=Stage(row.stage),
        node_id=node_id,
    )


def _status(row: SessionRow, result: SessionResult | None) -> SessionStatus:
    return SessionStatus(
        **session_from(row, row.node_id).model_dump(),
        group_id=row.group_id,
        cancel_requested=row.cancel_requested,
        result=result,
    )
