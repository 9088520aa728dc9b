"""Waiting for a replica with room."""

from __future__ import annotations

import asyncio

from polar.engines.base import EngineInfo
from polar.engines.pool.choice import ReplicaSet
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import Member, Replica
from polar.errors import EngineBusy
from polar.types import Spec
from waiting import hang_limit

INFO = EngineInfo("stub", "m", 100, "raw", 1)
ONE_EACH = PoolOptions(replicas=(Spec(name="stub"),), connections=1)


def serving(name: str) -> tuple[Replica, Member]:
    replica = Replica(name, object)
    replica.member, replica.why_out = Member(object(), INFO), ""
    return replica, replica.member


def pool() -> tuple[ReplicaSet, tuple[Replica, Member], tuple[Replica, Member]]:
    a, b = serving("a"), serving("b")
    replicas = ReplicaSet([a[0], b[0]], ONE_EACH)
    replicas.running = True
    return replicas, a, b


async def taking(replicas: ReplicaSet, *tried: Member) -> asyncio.Task[tuple[Replica, Member]]:
    """A call that waits."""
    task = asyncio.create_task(replicas.take("s", tried))
    await asyncio.sleep(0)
    return task


async def test_a_free_place_goes_to_a_call_that_may_use_it() -> None:
    replicas, (_, of_a), _ = pool()
    for _ in range(2):
        await replicas.take("s", ())
    moved, other = await taking(replicas, of_a), await taking(replicas)
    await replicas.leave(of_a)
    async with hang_limit():
        assert (await other)[1] is of_a, "the first in line has tried it already"
    assert not moved.done()
    moved.cancel()


async def test_a_place_whose_call_goes_away_is_given_to_the_next_that_may_use_it() -> None:
    replicas, (_, of_a), _ = pool()
    for _ in range(2):
        await replicas.take("s", ())
    first, moved, last = await taking(replicas), await taking(replicas, of_a), await taking(replicas)
    await replicas.leave(of_a)
    first.cancel()
    async with hang_limit():
        assert (await last)[1] is of_a
    moved.cancel()


async def test_a_call_that_waits_goes_to_a_replica_that_was_busy_for_a_moment() -> None:
    replicas, (a, of_a), (_, of_b) = pool()
    of_b.enter()
    a.failed(of_a, EngineBusy("b", 0.1))
    async with hang_limit():
        assert await replicas.take("s", ()) == (a, of_a)
