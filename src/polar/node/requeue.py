"""A source of sessions without a server, with a queue for those that are to run again here."""

from __future__ import annotations

import asyncio
from collections import deque

from polar.session.base import SessionSource
from polar.types import EarlierAttempt, Lease, SessionResult, Stage, Trajectory


class RequeueingSource:
    """A `ReturningSource` around a plain one. It ends when the plain one has ended and every session has its
    result."""

    patient = False

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self._ended = False
        self._again: deque[Lease] = deque()
        self._out: dict[str, Lease] = {}
        self._news = asyncio.Event()

    async def lease(self, room: int) -> list[Lease]:
        while True:
            if leases := await self._next(room):
                self._out.update({lease.session.session_id: lease for lease in leases})
                return leases
            if not self._out:
                return []
            self._news.clear()
            await self._news.wait()

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self._out.pop(result.session_id)
        self._news.set()
        await self._source.report(result, trajectory)

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        lease = self._out.pop(result.session_id)
        update = {"attempt": lease.session.attempt + 1, "stage": Stage.QUEUED}
        session = lease.session.model_copy(update=update)
        self._again.append(lease.model_copy(update={"session": session, "earlier": (*lease.earlier, ended)}))
        self._news.set()

    async def until_stopped(self) -> None:
        await asyncio.Event().wait()

    async def _next(self, room: int) -> list[Lease]:
        if self._again:
            return [self._again.popleft() for _ in range(min(room, len(self._again)))]
        if self._ended:
            return []
        leases = await self._source.lease(room)
        self._ended = not leases
        return leases
