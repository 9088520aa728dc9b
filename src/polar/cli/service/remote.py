"""How commands reach a rollout server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from polar.client import PolarClient

T = TypeVar("T")

IMPATIENT_S = 5.0
"""How long a command that a person waits for looks for the server."""


def ask(server: str | None, work: Callable[[PolarClient], Awaitable[T]], *, patient: bool = False) -> T:
    """Runs `work` with a client of the server; None: the server on this machine. `patient` work waits for a server
    that restarts."""
    from polar.client import DEFAULT_URL, PolarClient, Retry

    async def run() -> T:
        retry = Retry() if patient else Retry(total_s=IMPATIENT_S)
        async with PolarClient(server or DEFAULT_URL, retry=retry) as client:
            return await work(client)

    return asyncio.run(run())
