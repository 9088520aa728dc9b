"""Sessions: their rows, which every change of a session reads first, and their status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, select

from polar.server.records.tables import IS_OPEN, outcomes, results, sessions
from polar.server.records.tasks import request_of
from polar.server.retention.gaps import unknown_session
from polar.types import EarlierAttempt, Lease, Session, SessionResult, SessionStatus, Stage

EARLIER: TypeAdapter[tuple[EarlierAttempt, ...]] = TypeAdapter(tuple[EarlierAttempt, ...])


@dataclass(frozen=True)
class SessionRow:
    number: int
    session_id: str
    task_id: str
    group_id: str | None
    index: int
    attempt: int
    losses: int
    stage: str
    node_id: str | None
    lease_expires: float | None
    cancel_requested: bool
    priority: int
    earlier: str
    """As JSON."""
    harness: str
    runtime: str
    since: float | None
    leased: float | None
    waited_s: float
    cancelled: float | None
    cancel_reason: str

    @property
    def group(self) -> str:
        return self.group_id or self.task_id

    @property
    def earlier_attempts(self) -> tuple[EarlierAttempt, ...]:
        return EARLIER.validate_json(self.earlier)

    def session(self, node_id: str | None) -> Session:
        return Session(
            session_id=self.session_id,
            task_id=self.task_id,
            index=self.index,
            attempt=self.attempt,
            stage=Stage(self.stage),
            node_id=node_id,
        )

    def status(self, result: SessionResult | None = None) -> SessionStatus:
        return SessionStatus(
            **self.session(self.node_id).model_dump(),
            group_id=self.group_id,
            cancel_requested=self.cancel_requested,
            result=result,
        )


def rows_of(connection: Connection, query: Select[Any]) -> list[SessionRow]:
    return [SessionRow(**row) for row in connection.execute(query).mappings()]


def row_of(connection: Connection, session_id: str) -> SessionRow:
    found = rows_of(connection, select(sessions).where(sessions.c.session_id == session_id))
    if not found:
        raise unknown_session(connection, session_id)
    return found[0]


def status(connection: Connection, session_id: str) -> SessionStatus:
    """With the result, if there is one."""
    row = row_of(connection, session_id)
    query = select(results.c.body).where(results.c.session_id == session_id)
    body = connection.execute(query).scalar_one_or_none()
    return row.status(None if body is None else SessionResult.model_validate_json(body))


def listing(connection: Connection, task_id: str | None, stage: Stage | None, limit: int) -> list[SessionStatus]:
    """In the order of submission, without results."""
    query = select(sessions).order_by(sessions.c.number).limit(limit)
    if task_id is not None:
        query = query.where(sessions.c.task_id == task_id)
    if stage is not None:
        query = query.where(sessions.c.stage == stage.value)
        query = _in_stage(query, stage) if task_id is None else query
    return [row.status() for row in rows_of(connection, query)]


def _in_stage(query: Select[Any], stage: Stage) -> Select[Any]:
    """Of all tasks: by the index of outcomes if they have ended, else by that of open sessions."""
    if not stage.final:
        return query.where(IS_OPEN)
    ended = query.join(outcomes, outcomes.c.number == sessions.c.number).where(outcomes.c.stage == stage.value)
    return ended.order_by(None).order_by(outcomes.c.number)


def lease_of(connection: Connection, session_id: str) -> Lease:
    row = row_of(connection, session_id)
    return Lease(session=row.session(row.node_id), task=request_of(connection, row.task_id))
