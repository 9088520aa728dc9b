"""Who gets the next call: waits for a replica with room, and picks it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from polar.engines.pool.affinity import chosen
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import Member, Replica
from polar.errors import EngineBusy, EngineError


class ReplicaSet:
    def __init__(self, replicas: Sequence[Replica], options: PoolOptions) -> None:
        self.replicas = tuple(replicas)
        self.running = False
        self.checking = False
        """While the weights of all are compared, none gets a call."""
        self._options = options
        self._waiters: dict[asyncio.Future[Member | None], Collection[Member] | None] = {}
        """In order, each with the members it has tried already; None: it waits for no place. The result is the
        member that has a place for it, or None."""

    def serving(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.serving]

    async def take(self, session_id: str, tried: Collection[Member]) -> tuple[Replica, Member]:
        """The replica of a call, entered; `leave` gives its place back. Raises `EngineBusy` if all are busy, and
        `EngineError` if none comes into service within the patience of the pool."""
        loop, deadline = asyncio.get_running_loop(), None
        while True:
            if not self.running:
                raise EngineError("the pool is not running; start it first")
            there = [] if self.checking else [each for each in self.serving() if each.member not in tried]
            idle = [each for each in there if not each.busy_s()]
            if there and not idle:
                raise self._all_busy(there)
            roomy = [each for each in idle if each.under_way < self._options.connections]
            if roomy:
                replica = chosen(session_id, roomy, self._options.load_factor)
                assert replica.member is not None
                replica.member.enter()
                return replica, replica.member
            if there or self.checking:
                deadline = None
                await self._news(self._pause_ends(there), tried)
                continue
            deadline = deadline if deadline is not None else loop.time() + self._options.patience_s
            if self.serving() or loop.time() >= deadline:  # each that serves has failed this call already
                raise self.none_answers()
            await self._news(deadline, tried)

    def _pause_ends(self, there: Sequence[Replica]) -> float | None:
        """When the first of those that are busy may be asked again; None: none is."""
        pauses_s = [pause_s for each in there if (pause_s := each.busy_s())]
        return asyncio.get_running_loop().time() + min(pauses_s) if pauses_s else None

    async def leave(self, member: Member) -> None:
        try:
            await member.leave()
        finally:
            self._wake_next(member)

    def wake_all(self) -> None:
        """After a change of who is in service."""
        waiting, self._waiters = self._waiters, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def none_answers(self) -> EngineError:
        listed = "; ".join(f"{each.name}: {each.why_out}" for each in self.replicas if each.why_out)
        return EngineError(f"no replica of the pool is in service: {listed or 'each has failed this call'}")

    async def changed(self, deadline: float | None) -> None:
        """Waits for the next change, at most until the deadline if there is one."""
        await self._news(deadline, None)

    async def _news(self, deadline: float | None, tried: Collection[Member] | None) -> None:
        waiter: asyncio.Future[Member | None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = tried
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            return
        except asyncio.CancelledError:
            woken = waiter.done() and not waiter.cancelled()
            if woken and (member := waiter.result()):  # the place it was woken for is still free
                self._wake_next(member)
            raise
        finally:
            waiter.cancel()
            self._waiters.pop(waiter, None)

    def _wake_next(self, member: Member) -> None:
        for waiter, tried in self._waiters.items():
            if tried is not None and member not in tried and not waiter.done():
                del self._waiters[waiter]
                waiter.set_result(member)
                return

    def _all_busy(self, busy: Sequence[Replica]) -> EngineBusy:
        listed = ", ".join(replica.name for replica in busy)
        soonest_s = min(replica.busy_s() for replica in busy)
        return EngineBusy(f"all replicas in service are busy: {listed}", soonest_s)
