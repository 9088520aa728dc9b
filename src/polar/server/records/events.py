"""Events: every change a client may watch, appended in the transaction that makes the change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from polar.server.records.tables import events, storage
from polar.server.state import Change
from polar.types import Event

PAGE = 500


@dataclass(frozen=True)
class NewEvent:
    """An event before it has its cursor."""

    kind: Literal["task", "stage", "result", "node", "policy"]
    task_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def append(change: Change, new: Sequence[NewEvent]) -> None:
    if new:
        rows = [{**vars(event), "at": change.now, "data": json.dumps(event.data)} for event in new]
        change.connection.execute(insert(events), rows)
        change.wakes.add("events")


def gap_after(connection: Connection, cursor: int, now: float) -> Event | None:
    """What a client that goes on after this cursor has missed. A new client, without one, has missed nothing."""
    last = connection.execute(select(storage.c.events_removed)).scalar_one()
    return Event(cursor=last, at=now, kind="gap", data={"after": cursor}) if 0 < cursor < last else None


def page_after(connection: Connection, cursor: int, now: float) -> list[Event]:
    """Begins with a gap if retention has removed some of what comes next, also from a stream that has stalled."""
    found, gap = after(connection, cursor), gap_after(connection, cursor, now)
    # In this order: what another server removes after the first look was still found.
    return found if gap is None or (found and found[0].cursor <= gap.cursor) else [gap, *found]


def after(connection: Connection, cursor: int, limit: int = PAGE) -> list[Event]:
    query = select(events).where(events.c.cursor > cursor).order_by(events.c.cursor).limit(limit)
    return [
        Event.model_validate({**row, "data": json.loads(row["data"])})
        for row in connection.execute(query).mappings()
    ]
