"""One replica of a pool: the engine that speaks with it, its calls under way, and what its failures mean."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, TypeVar

from polar.engines.base import EngineInfo
from polar.errors import ChatRefused, ContextOverflow, EngineBusy, EngineDefect, EngineError, SchemaRefused

STRIKES = 3
"""Failures in a row of a replica that still answers, after which it gets no more calls."""
LEAST_PAUSE_S = 0.1
"""A busy replica gets no call for at least so long, whatever it says."""
BAD_REQUEST = (400, 413, 422)
"""HTTP statuses with which a server refuses what it was asked."""

T = TypeVar("T")
Fault = Literal["request", "busy", "strike", "lost"]


class ReplicaLost(EngineError):
    """The replica was taken out of service while a call waited for its first token."""


def fault_of(error: EngineError) -> Fault:
    """Whose fault an error is. request: every replica would refuse it. strike: the replica answers, with an error.
    lost: it does not answer, or broke off."""
    if isinstance(error, EngineBusy):
        return "busy"
    if isinstance(error, ContextOverflow | SchemaRefused | ChatRefused):
        return "request"
    status: Any = getattr(error, "status", 0)
    if status in BAD_REQUEST:
        return "request"
    return "strike" if status or isinstance(error, EngineDefect) else "lost"


class Member:
    """One start of a replica's engine. A replica that was lost comes back with a new one, and the calls that the
    old one began end with it."""

    def __init__(self, engine: Any, info: EngineInfo) -> None:
        self.engine = engine
        self.info = info
        self.under_way = 0
        self.names_version = False
        """Whether its server reported a weight version when the weights were last compared."""
        self.chat_proven = False
        self.proving = asyncio.Lock()
        """Around the proof of its chat mode."""
        self._retired = False
        self._waiting: set[asyncio.Timeout] = set()
        """Calls that have produced nothing yet."""

    async def first(self, pieces: AsyncGenerator[T]) -> T | None:
        """The first piece of a reply. Raises `ReplicaLost` if the replica is taken out of service before."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting.add(limit)
                return await anext(pieces, None)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ReplicaLost("the replica was taken out of service before the reply began") from error
        finally:
            self._waiting.discard(limit)

    def enter(self) -> None:
        self.under_way += 1

    async def leave(self) -> None:
        self.under_way -= 1
        await self._stop_if_done()

    async def retire(self) -> None:
        """Ends the calls that wait for a first token; the engine stops with the last of the others."""
        self._retired = True
        for limit in self._waiting:
            limit.reschedule(0.0)
        await self._stop_if_done()

    async def _stop_if_done(self) -> None:
        if self._retired and self.under_way == 0:
            await self.engine.stop()


class Replica:
    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self.make = make
        """A new engine for it, not started."""
        self.member: Member | None = None
        """None while it does not answer."""
        self.why_out = "it has not answered yet"
        """Empty while it is in service."""
        self.starting = False
        """Its self-test is under way."""
        self.refused: Exception | None = None
        """Set if waiting does not help: its options, or a model that the others do not have."""
        self.suspected = asyncio.Event()
        """Wakes its watch."""
        self.moved = 0
        """Calls that went on to another replica."""
        self.losses = 0
        self._busy_until = -math.inf
        self._strikes = 0
        self._ended: Counter[str] = Counter()
        """Counters of its earlier engines."""

    @property
    def serving(self) -> bool:
        return self.member is not None and not self.why_out

    @property
    def under_way(self) -> int:
        return self.member.under_way if self.member else 0

    def busy_s(self) -> float:
        """How long it is to get no call because it said that it is busy."""
        return max(0.0, self._busy_until - asyncio.get_running_loop().time())

    def succeeded(self) -> None:
        self._strikes = 0

    def failed(self, member: Member, error: EngineError) -> None:
        """Draws the consequences for the calls to come. Errors of an earlier engine have none."""
        fault = fault_of(error)
        if member is not self.member or isinstance(error, ReplicaLost):
            return
        if fault == "busy" and isinstance(error, EngineBusy):
            pause_s = max(LEAST_PAUSE_S, error.retry_after_s)
            self._busy_until = asyncio.get_running_loop().time() + pause_s
        elif fault == "strike":
            self._strikes += 1
            if self._strikes >= STRIKES:
                self.take_out(str(error))
        elif fault == "lost":
            self.take_out(str(error))

    def take_out(self, why: str) -> None:
        """No more calls; the watch ends its engine and brings it back."""
        if not self.why_out:
            self.losses += 1
        self.why_out = why
        self.suspected.set()

    async def drop(self) -> None:
        """Gives up its engine."""
        member, self.member = self.member, None
        if member is not None:
            self._ended.update(_counts(member.engine.counters()))
            self._strikes, self._busy_until = 0, -math.inf
            await member.retire()

    def counters(self) -> dict[str, int]:
        """Of all its engines together."""
        counted = Counter(self._ended)
        if self.member is not None:
            counted.update(_counts(self.member.engine.counters()))
        return dict(counted)


def _counts(counters: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in counters.items() if isinstance(value, int)}
