"""Signals and long polls: no signal is missed, and no poll waits for a client that left."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import HTTPException, Request

from polar.server.long_poll import fires_within, poll
from polar.server.state import Signal


class Client:
    """A request whose client stays until the test makes it leave."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._body_read = False

    @property
    def request(self) -> Request:
        return Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        if not self._body_read:
            self._body_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


class Shelf:
    """Something to look at."""

    def __init__(self, *things: str) -> None:
        self.things = list(things)
        self.looks = 0

    async def look(self) -> list[str]:
        self.looks += 1
        return list(self.things)


async def test_what_is_there_is_found_at_once() -> None:
    shelf = Shelf("a")
    assert await poll(Client().request, Signal(), 60, shelf.look, bool) == ["a"]
    assert shelf.looks == 1


async def test_without_time_there_is_one_look() -> None:
    shelf = Shelf()
    assert await poll(Client().request, Signal(), 0, shelf.look, bool) == []
    assert shelf.looks == 1


async def test_a_ring_makes_it_look_again() -> None:
    shelf, signal = Shelf(), Signal()
    waiting = asyncio.create_task(poll(Client().request, signal, 60, shelf.look, bool))
    for _ in range(3):
        await asyncio.sleep(0.01)
        signal.fire()
    await asyncio.sleep(0.01)
    shelf.things.append("late")
    signal.fire()
    assert await waiting == ["late"]
    assert shelf.looks == 5


async def test_a_ring_during_a_look_is_not_missed() -> None:
    signal, looks = Signal(), 0

    async def look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            signal.fire()  # what it would have found comes right after it looked
            return False
        return True

    assert await poll(Client().request, signal, 60, look, bool)
    assert looks == 2


async def test_time_runs_out() -> None:
    assert await poll(Client().request, Signal(), 0.02, Shelf().look, bool) == []


async def test_a_client_that_leaves_ends_the_wait() -> None:
    client, shelf, signal = Client(), Shelf(), Signal()
    waiting = asyncio.create_task(poll(client.request, signal, 60, shelf.look, bool))
    await asyncio.sleep(0.01)
    client.left.set()
    assert await waiting == []
    assert shelf.looks == 1


async def test_a_client_that_sends_without_end_is_taken_for_one_that_left() -> None:
    async def receive() -> dict[str, Any]:
        raise HTTPException(413)

    assert await poll(Request({"type": "http"}, receive), Signal(), 60, Shelf().look, bool) == []


async def test_a_look_under_way_is_finished_when_the_client_leaves() -> None:
    client, go_on = Client(), asyncio.Event()

    async def look() -> str:
        await go_on.wait()
        return "leased"

    waiting = asyncio.create_task(poll(client.request, Signal(), 60, look, bool))
    await asyncio.sleep(0)
    client.left.set()
    await asyncio.sleep(0.01)
    go_on.set()
    assert await waiting == "leased"


async def test_a_closed_signal_ends_the_wait() -> None:
    signal = Signal()
    waiting = asyncio.create_task(poll(Client().request, signal, 60, Shelf().look, bool))
    await asyncio.sleep(0.01)
    signal.close()
    assert await waiting == []
    assert await poll(Client().request, signal, 60, Shelf().look, bool) == []
    signal.fire()
    assert await fires_within(signal.listen(), 60)


async def test_a_ring_wakes_all_listeners_and_no_later_ones() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(fires_within(signal.listen(), 60)) for _ in range(5)]
    await asyncio.sleep(0)
    signal.fire()
    assert await asyncio.gather(*waiting) == [True] * 5
    assert not await fires_within(signal.listen(), 0.01)


async def test_nothing_is_left_behind() -> None:
    before = asyncio.all_tasks()
    await poll(Client().request, Signal(), 0.01, Shelf().look, bool)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
