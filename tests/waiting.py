"""How tests wait: for an event, however busy the machine is. The limit only ends a hang."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

HANG_S = 300.0
"""Nothing that works takes so long, not even on a machine with other work: a wait that runs out is a hang."""


def hang_limit() -> asyncio.Timeout:
    """Around what ends on an event of its own: `async with hang_limit(): await serving`."""
    return asyncio.timeout(HANG_S)


async def until(true: Callable[[], Any], pause_s: float = 0.01) -> Any:
    """Looks again and again until the condition holds, and returns what it said. It may be asynchronous."""
    async with hang_limit():
        while True:
            value = true()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(pause_s)


def blocked_until(true: Callable[[], Any], pause_s: float = 0.01) -> Any:
    """The same in a test without an event loop."""
    began = time.monotonic()
    while not (value := true()):
        assert time.monotonic() - began < HANG_S, "it never came"
        time.sleep(pause_s)
    return value
