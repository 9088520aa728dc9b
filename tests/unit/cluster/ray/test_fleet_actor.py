"""The actor that places the others, without a Ray cluster."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from polar.cluster.ray import fleet
from polar.cluster.ray.fleet import FleetActor
from polar.cluster.ray.plan import FleetPlan
from polar.errors import PolarError
from waiting import hang_limit

PLAN = FleetPlan("http://server", "the token", look_every_s=0.0)


async def test_a_fleet_that_is_stopped_places_nothing_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops it lists the machines' actors next: one placed later would stay for ever."""
    placing, go_on, placed = threading.Event(), threading.Event(), threading.Event()

    def place_slowly(_: FleetPlan) -> None:
        placing.set()
        go_on.wait()
        placed.set()

    monkeypatch.setattr(fleet, "place_missing", place_slowly)
    actor = FleetActor(PLAN)
    async with hang_limit():
        await asyncio.to_thread(placing.wait)
        stopping = asyncio.create_task(actor.stop())
        await asyncio.wait([stopping], timeout=0.2)
        had_returned = stopping.done()
        go_on.set()
        await stopping
    assert not had_returned
    assert placed.is_set()


async def test_a_fleet_that_waits_for_its_next_look_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "place_missing", lambda _: None)
    actor = FleetActor(FleetPlan("http://server", "the token", look_every_s=3600.0))
    async with hang_limit():
        await asyncio.sleep(0.05)
        await actor.stop()


@pytest.mark.parametrize(
    "wrong",
    [{"resources": {"polar": float("nan")}}, {"resources": {"CPU": 2.0}}, {"gpus": float("inf")}, {"cpus": 1e-9}],
    ids=str,
)
def test_amounts_that_ray_cannot_reserve_are_refused_before_the_fleet_starts(wrong: dict[str, Any]) -> None:
    """The fleet's actor would try for ever, and only its log on the cluster would say why nothing comes."""
    with pytest.raises(PolarError, match="Ray cannot reserve what you ask for"):
        fleet.up(replace(PLAN, **wrong))


def test_fractions_and_own_resources_can_be_reserved() -> None:
    fleet.check_amounts(replace(PLAN, cpus=0.5, gpus=0.25, resources={"polar": 1.0}))
