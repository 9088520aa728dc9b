"""How commands reach a rollout server: its address, and one client for the work of a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from polar.client import PolarClient

T = TypeVar("T")

ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="POLAR_SERVER", help="Address of a rollout server.")
]

IMPATIENT_S = 5.0
"""A person who waits for a command wants to hear soon that there is no server."""


def ask(server: str | None, work: Callable[[PolarClient], Awaitable[T]], *, patient: bool = False) -> T:
    """Does `work` with a client of the server, or of the one on this machine. Patient work sits out a restart."""
    from polar.client import DEFAULT_URL, PolarClient, Retry

    async def run() -> T:
        retry = Retry() if patient else Retry(total_s=IMPATIENT_S)
        async with PolarClient(server or DEFAULT_URL, retry=retry) as client:
            return await work(client)

    return asyncio.run(run())
