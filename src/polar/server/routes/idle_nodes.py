"""Nodes that wait for a session. A new task wakes all of them, because each may be the only one that can run it.
Once one has found the queue empty, the others go on waiting without a look of their own."""

from __future__ import annotations

import asyncio

from fastapi import Request

from polar.server.long_poll import poll
from polar.server.records import leases
from polar.server.scheduling import queue
from polar.server.state import Change, State
from polar.types import LeaseReply, LeaseRequest

LOOKS_AT_ONCE = 4
"""Of woken nodes: what one finds may spare the next."""


class IdleNodes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._signal = state.signals["queue"]
        self._turn = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._empty_at: int | None = None
        """The signal's count when the queue was found empty."""

    async def lease(self, request: Request, node_id: str, wanted: LeaseRequest) -> LeaseReply:
        """Waits up to `wait_s` for the first session. The first look is always its own: another server on the same
        database fires no signal here."""
        last: LeaseReply | None = None

        async def look() -> LeaseReply:
            nonlocal last
            if last is None:
                last = await self._look(node_id, wanted.room)
                return last
            async with self._turn:
                if self._empty_at != self._signal.count:
                    last = await self._look(node_id, wanted.room)
            return last

        return await poll(request, self._signal, wanted.wait_s, look, done=lambda reply: bool(reply.leases))

    async def _look(self, node_id: str, room: int) -> LeaseReply:
        def work(change: Change) -> tuple[LeaseReply, bool]:
            reply = leases.lease(change, node_id, room)
            return reply, len(reply.leases) < room and queue.is_empty(change.connection)

        count = self._signal.count  # before the look: a session that it misses fires the signal later
        reply, empty = await self._state.change(work)
        if empty:
            self._empty_at = count
        return reply
