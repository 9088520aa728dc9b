"""Long polls: look at once and at each ring of a bell, until something is there, time is up or the client left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from fastapi import HTTPException, Request

from polar.server.state import Bell

T = TypeVar("T")


async def poll(request: Request, bell: Bell, wait_s: float, look: Callable[[], Awaitable[T]]) -> T:
    """The first thing `look` finds that is not empty, else what it found last. `look` is never broken off: it may
    have leased a session by then."""
    deadline = asyncio.get_running_loop().time() + wait_s
    left = asyncio.create_task(_client_leaves(request))
    try:
        while True:
            rung = bell.listen()
            found = await look()
            remaining_s = deadline - asyncio.get_running_loop().time()
            if found or remaining_s <= 0 or bell.silenced:
                return found
            await _ring(rung, left, remaining_s)
            if left.done():
                return found
    finally:
        left.cancel()


async def rings_within(rung: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await rung.wait()
    except TimeoutError:
        return False
    return True


async def _ring(rung: asyncio.Event, left: asyncio.Task[None], seconds: float) -> None:
    ring = asyncio.create_task(rings_within(rung, seconds))
    try:
        await asyncio.wait((ring, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ring.cancel()


async def _client_leaves(request: Request) -> None:
    with suppress(HTTPException):  # whoever sends a body without end to a long poll is not waiting for its answer
        while (await request.receive())["type"] != "http.disconnect":
            pass
