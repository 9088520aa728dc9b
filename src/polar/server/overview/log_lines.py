"""The newest warnings and errors of the server and its nodes, as one log that does not grow without end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Connection, delete, func, insert, select, update

from polar.log_buffer import LogBuffer
from polar.server.overview.outcome_columns import storable
from polar.server.overview.tables import log_lines
from polar.server.records.tables import nodes
from polar.server.state import Change, State
from polar.store.database import StoreError
from polar.types import Heartbeat, LogLine, LogPage
from polar.types.base import MAX_COUNT

KEPT = 5000
"""Lines; older ones are deleted."""
AT_ONCE = 200
RETRY_S = 5.0
"""How long to wait for a database that is away."""
_OWN_LOGGERS = ("polar.server", "polar.store", "uvicorn")


def add(change: Change, lines: Sequence[LogLine], source: str) -> None:
    if not lines:
        return
    rows = [
        {
            **line.model_dump(include={"at", "level"}),
            "source": source,
            "message": storable(line.message),
            "session_id": None if line.session_id is None else storable(line.session_id),
        }
        for line in lines
    ]
    change.connection.execute(insert(log_lines), rows)
    newest = select(func.max(log_lines.c.cursor)).scalar_subquery()
    change.connection.execute(delete(log_lines).where(log_lines.c.cursor <= newest - KEPT))


def take(change: Change, node_id: str, beat: Heartbeat) -> None:
    """Adds a node's lines, without those that came before: the node repeats a heartbeat that got no answer."""
    if not beat.log:
        return
    own = nodes.c.node_id == node_id
    row = change.connection.execute(select(nodes.c.name, nodes.c.log_number).where(own)).one()
    new = list(beat.log[max(0, row.log_number - beat.log_number) :])
    if row.log_number < beat.log_number and row.log_number:
        missing = f"{beat.log_number - row.log_number} lines of this node were dropped before they could be sent"
        new.insert(0, LogLine(at=change.now, level="warning", message=missing))
    add(change, new, row.name)
    following = min(beat.log_number + len(beat.log), MAX_COUNT)
    change.connection.execute(update(nodes).where(own).values(log_number=following))


def page(connection: Connection, after: int, session_id: str | None, limit: int) -> LogPage:
    """The newest lines after the cursor."""
    query = select(log_lines).where(log_lines.c.cursor > after)
    if session_id is not None:
        query = query.where(log_lines.c.session_id == session_id)
    rows = connection.execute(query.order_by(log_lines.c.cursor.desc()).limit(limit)).all()[::-1]
    return LogPage(
        lines=tuple(
            LogLine(at=row.at, level=row.level, source=row.source, message=row.message, session_id=row.session_id)
            for row in rows
        ),
        cursor=rows[-1].cursor if rows else after,
    )


class ServerLog:
    """Writes the server's own warnings and errors to the database, as long as it runs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._buffer = LogBuffer(lambda record: record.name.startswith(_OWN_LOGGERS))

    async def run(self) -> None:
        new = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._buffer.on_line = lambda: _set_soon(loop, new)
        with self._buffer.listening():
            while True:
                await new.wait()
                new.clear()
                await self._write_all()

    async def _write_all(self) -> None:
        while True:
            number, lines = self._buffer.pending(AT_ONCE)
            if not lines:
                return
            try:
                await self._state.change(add, lines, "server")
                self._buffer.delivered(number + len(lines))
            except StoreError:  # is logged where it matters, not here: each line would make another
                await asyncio.sleep(RETRY_S)


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(event.set)
