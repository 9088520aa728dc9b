"""A row of `sessions`, typed: what every part of the server that changes a session reads first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, select

from polar.server.records.tables import sessions
from polar.server.refusals import unknown
from polar.types import EarlierAttempt

EARLIER: TypeAdapter[tuple[EarlierAttempt, ...]] = TypeAdapter(tuple[EarlierAttempt, ...])


@dataclass(frozen=True)
class SessionRow:
    """A row of `sessions`."""

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

    @property
    def earlier_attempts(self) -> tuple[EarlierAttempt, ...]:
        return EARLIER.validate_json(self.earlier)


def rows_of(connection: Connection, query: Select[Any]) -> list[SessionRow]:
    return [SessionRow(**row) for row in connection.execute(query).mappings()]


def row_of(connection: Connection, session_id: str) -> SessionRow:
    found = rows_of(connection, select(sessions).where(sessions.c.session_id == session_id))
    if not found:
        raise unknown("session", session_id)
    return found[0]
