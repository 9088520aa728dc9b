"""Events: every change anybody may watch, appended in the transaction that makes the change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from polar.server.records.rows import SessionRow
from polar.server.records.tables import events
from polar.server.state import Change
from polar.types import Event, Stage

PAGE = 500


@dataclass(frozen=True)
class News:
    """An event before it has its place in the order."""

    kind: Literal["task", "stage", "result", "node", "policy"]
    task_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def stage_news(session: SessionRow, stage: Stage, attempt: int, node_id: str | None, **more: Any) -> News:
    data = {"stage": stage.value, "attempt": attempt, **more}
    return News("stage", session.task_id, session.session_id, node_id, data)


def append(change: Change, news: Sequence[News]) -> None:
    if not news:
        return
    rows = [
        {
            "at": change.now,
            "kind": one.kind,
            "task_id": one.task_id,
            "session_id": one.session_id,
            "node_id": one.node_id,
            "data": json.dumps(one.data),
        }
        for one in news
    ]
    change.connection.execute(insert(events), rows)
    change.wakes.add("events")


def after(connection: Connection, cursor: int, limit: int = PAGE) -> list[Event]:
    query = select(events).where(events.c.cursor > cursor).order_by(events.c.cursor).limit(limit)
    return [
        Event.model_validate({**row, "data": json.loads(row["data"])})
        for row in connection.execute(query).mappings()
    ]
