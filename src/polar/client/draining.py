"""Waits until a pause is complete: every live node has paused, and no generation is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from polar.errors import PolarError
from polar.types import Drain, Policy

ASK_S = 2.0
"""Length of one request: a node that dies drops out of the drain without waking it."""


class NotDrained(PolarError):
    """Generations may still be under way. Generation stays paused, unless another client has resumed it."""

    def __init__(self, message: str, drain: Drain | None) -> None:
        super().__init__(message)
        self.drain = drain
        """The last known progress."""


async def wait_for_drain(ask: Callable[..., Awaitable[Drain]], timeout_s: float | None) -> Policy:
    drain: Drain | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while drain is None or not drain.done:
                drain = await ask(wait_s=ASK_S)
                if not drain.policy.paused:
                    raise NotDrained("another client resumed generation before the pause was complete", drain)
    except TimeoutError:
        raise NotDrained(f"after {timeout_s:g} s {_left(drain)}", drain) from None
    return drain.policy


def _left(drain: Drain | None) -> str:
    if drain is None:
        return "the server has not reported the progress of the pause"
    unheard = f", not acknowledged by {', '.join(drain.unheard)}" if drain.unheard else ""
    return f"{drain.generating} generations are under way{unheard}; generation stays paused"
