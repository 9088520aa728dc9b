"""The record of control actions: who did what from where, and what was refused.

A change made for a control request appends its action in its own transaction, so that neither is there without the
other. No route changes the record; the oldest entries go when it is full.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, delete, insert, select

from polar.server.access.tables import actions
from polar.store.private import private_file
from polar.types import Action, ActionPage

MAX_TEXT = 500
REFUSALS = 10
REFUSALS_S = 60.0
"""At most so many refusals of clients without a valid token are recorded in this time; more are counted."""


@dataclass(frozen=True)
class Actor:
    by: Literal["token", "login", "node token", "server", "unknown"]
    token: str = ""
    address: str = ""


@dataclass(frozen=True)
class ActionUnderWay:
    """What a request is about to change."""

    actor: Actor
    action: str
    outcome: Literal["done", "refused"] = "done"
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def about(self, **more: Any) -> ActionUnderWay:
        return replace(self, detail={**self.detail, **more})


UNDER_WAY: ContextVar[ActionUnderWay | None] = ContextVar("action under way", default=None)
"""Of the request that is being handled; `State.change` records it. None: it is no control action."""


def append(connection: Connection, now: float, kept: int, done: ActionUnderWay) -> Action:
    """`kept`: how many entries stay."""
    detail = {name: _bounded(value) for name, value in done.detail.items()}
    row: dict[str, Any] = {"at": now, "action": done.action, "outcome": done.outcome, **vars(done.actor)}
    inserted = connection.execute(insert(actions).values(**row, detail=json.dumps(detail)))
    assert inserted.inserted_primary_key is not None
    cursor = int(inserted.inserted_primary_key[0])
    connection.execute(delete(actions).where(actions.c.cursor <= cursor - kept))
    return Action(cursor=cursor, detail=detail, **row)


def page(connection: Connection, after: int | None, limit: int, before: int | None = None) -> ActionPage:
    """The first after the cursor `after`; without one, the newest, of those before the cursor `before`."""
    query = select(actions).limit(limit)
    if before is not None:
        query = query.where(actions.c.cursor < before)
    if after is None:
        rows = connection.execute(query.order_by(actions.c.cursor.desc())).mappings().all()[::-1]
    else:
        rows = (
            connection.execute(query.where(actions.c.cursor > after).order_by(actions.c.cursor)).mappings().all()
        )
    found = tuple(Action.model_validate({**row, "detail": json.loads(row["detail"])}) for row in rows)
    return ActionPage(actions=found, cursor=found[-1].cursor if found else after or 0)


def _bounded(value: Any) -> Any:
    """Text as every database can store it."""
    return value.replace("\0", "\\0")[:MAX_TEXT] if isinstance(value, str) else value


class RefusalLimit:
    """Keeps clients without a token from filling the record."""

    def __init__(self) -> None:
        self._began = 0.0
        self._recorded = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """How many were left out before this one; None: this one is left out too."""
        now = time.monotonic()
        if now - self._began >= REFUSALS_S:
            self._began, self._recorded = now, 0
        if self._recorded >= REFUSALS:
            self._left_out += 1
            return None
        self._recorded += 1
        before, self._left_out = self._left_out, 0
        return before


class ActionFile:
    """The record as JSON lines, for collectors of logs. Opened for each line, so that it may be moved away."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, action: Action) -> None:
        with open(self._path, "a", encoding="utf-8", opener=private_file) as file:
            file.write(action.model_dump_json() + "\n")
