"""The actor that places the others, without a Ray cluster."""

from __future__ import annotations

import asyncio
import threading

import pytest

from polar.cluster.ray import fleet
from polar.cluster.ray.fleet import FleetActor
from polar.cluster.ray.plan import FleetPlan
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
