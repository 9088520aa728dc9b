"""Long polls: look now and at each signal, until there is something, time is up or the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from fastapi import HTTPException, Request

from polar.server.state import Signal

T = TypeVar("T")


async def poll(
    request: Request, signal: Signal, wait_s: float, look: Callable[[], Awaitable[T]], done: Callable[[T], bool]
) -> T:
    """The first thing `look` finds that is `done`, else what it found last. `look` is never cancelled: it may have
    leased a session by then."""
    deadline = asyncio.get_running_loop().time() + wait_s
    left = asyncio.create_task(_client_leaves(request))
    try:
        while True:
            fired = signal.listen()
            found = await look()
            remaining_s = deadline - asyncio.get_running_loop().time()
            if done(found) or remaining_s <= 0 or signal.closed:
                return found
            await _wait(fired, left, remaining_s)
            if left.done():
                return found
    finally:
        left.cancel()


async def fires_within(fired: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await fired.wait()
    return fired.is_set()


async def _wait(fired: asyncio.Event, left: asyncio.Task[None], seconds: float) -> None:
    firing = asyncio.create_task(fired.wait())
    try:
        await asyncio.wait((firing, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        firing.cancel()


async def _client_leaves(request: Request) -> None:
    with suppress(HTTPException):  # a client that sends an endless body does not wait for an answer
        while (await request.receive())["type"] != "http.disconnect":
            pass
