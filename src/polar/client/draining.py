"""Waiting for a pause to take hold everywhere: no node begins a generation, and none is under way any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from polar.errors import PolarError
from polar.types import Drain, Policy

ASK_S = 2.0
"""So long one question may wait at the server: a node that falls silent stops counting without anybody's word."""


class NotDrained(PolarError):
    """Something may still be generated. Generation is paused, unless somebody has resumed it."""

    def __init__(self, message: str, drain: Drain | None) -> None:
        super().__init__(message)
        self.drain = drain
        """As it stood when it was last heard of."""


class AskDrain(Protocol):
    def __call__(self, *, wait_s: float) -> Awaitable[Drain]: ...


async def wait_for_drain(ask: AskDrain, timeout_s: float | None) -> Policy:
    drain: Drain | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while drain is None or not drain.done:
                drain = await ask(wait_s=ASK_S)
                if not drain.policy.paused:
                    raise NotDrained("generation was resumed by somebody while its pause was waited for", drain)
    except TimeoutError:
        raise NotDrained(f"after {timeout_s:g} s {_left(drain)}", drain) from None
    return drain.policy


def _left(drain: Drain | None) -> str:
    if drain is None:
        return "the server has not told how far the pause has come"
    silent = f", and no word yet from {', '.join(drain.unheard)}" if drain.unheard else ""
    return f"{drain.generating} generations are under way{silent}; generation stays paused"
