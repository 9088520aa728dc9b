"""Comparing the weights of replicas while other things happen to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.pool.admission import Admission
from polar.engines.pool.choice import ReplicaSet
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import Member, Replica
from polar.types import Spec, logprobs, token_ids

OPTIONS = PoolOptions(replicas=(Spec(name="stub"),))
INFO = EngineInfo("stub", "m", 100, "raw", 1)


class Weighed:
    """Samples a token of its version when it may."""

    def __init__(self, version: str = "1") -> None:
        self.version = version
        self.error: Exception | None = None
        self.may_sample = asyncio.Event()
        self.may_sample.set()
        self.asked = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        self.asked.set()
        await self.may_sample.wait()
        if self.error is not None:
            raise self.error
        yield Piece(token_ids([7]), logprobs([-1.0]), "length", policy_version=self.version)

    async def stop(self) -> None: ...

    def counters(self) -> dict[str, Any]:
        return {}


def started(name: str, engine: Weighed, *, serving: bool = True) -> Replica:
    replica = Replica(name, lambda: engine)
    replica.member = Member(engine, INFO)
    replica.why_out = "" if serving else "it starts"
    return replica


@pytest.mark.parametrize("what", ["compare_all", "admit"])
async def test_a_replica_that_is_lost_during_the_comparison_stays_out(what: str) -> None:
    one, two = Weighed(), Weighed()
    a, b = started("a", one), started("b", two, serving=what != "admit")
    admission = Admission(ReplicaSet([a, b], OPTIONS), OPTIONS)
    two.may_sample.clear()
    comparing = asyncio.create_task(admission.admit(b) if what == "admit" else admission.compare_all())
    await two.asked.wait()
    a.take_out("no connection")  # a call has noticed it; the token of the comparison came before
    two.may_sample.set()
    await comparing
    assert (a.why_out, b.why_out) == ("no connection", "")


async def test_a_replica_that_is_not_admitted_yet_is_not_put_into_service_by_an_update() -> None:
    """Where no version is named only its admission compares its weights."""
    a, b = started("a", Weighed("")), started("b", Weighed(""), serving=False)
    b.starting = True
    await Admission(ReplicaSet([a, b], OPTIONS), OPTIONS).compare_all()
    assert (a.serving, b.serving) == (True, False)


async def test_an_engine_that_fails_in_its_own_way_is_taken_out() -> None:
    one, two = Weighed("1"), Weighed("2")
    one.error = ValueError("not a number")
    a, b = started("a", one), started("b", two)
    await Admission(ReplicaSet([a, b], OPTIONS), OPTIONS).compare_all()
    assert (a.why_out, b.why_out) == ("ValueError: not a number", "")
    assert a.suspected.is_set()
