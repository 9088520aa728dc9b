"""How commands reach a rollout server, and what they say if they cannot."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from polar.client import PolarClient

T = TypeVar("T")


def ask(server: str | None, work: Callable[[PolarClient], Awaitable[T]], *, patient: bool = False) -> T:
    """Runs `work` with a client of the server; None: the server on this machine. `patient` work waits for a server
    that restarts; other work ends at once if no server answers."""

    async def run() -> T:
        async with connected(server, patient=patient) as client:
            return await work(client)

    return asyncio.run(run())


@asynccontextmanager
async def connected(server: str | None, *, patient: bool = False) -> AsyncGenerator[PolarClient]:
    from polar.client import DEFAULT_URL, PolarClient, Retry, ServerError
    from polar.errors import PolarError
    from polar.tls import advice

    # A connection that breaks off is tried again. A server that is not there is reported at once.
    address, brief = server or DEFAULT_URL, Retry(total_s=2.0, unreachable=False)
    try:
        if patient:  # with a server that restarts, not with one that never was there
            async with PolarClient(address, retry=brief) as client:
                await client.policy()
        async with PolarClient(address, retry=Retry() if patient else brief) as client:
            yield client
    except ServerError as error:
        if error.status is not None:
            raise
        if cause := advice(error.__cause__ or error, address):
            raise PolarError(f"no connection to the rollout server at {address}: {cause}") from error
        why = one_reason(error)
        raise PolarError(
            f"no rollout server answers at {address} ({why}): start one with `polar up`, or name another with "
            "--server or POLAR_SERVER"
        ) from error


async def check_server(server: str, *, with_nodes: bool = True) -> None:
    """Raises unless the server answers to this token and, with `with_nodes`, has a node to run sessions."""
    from polar.errors import PolarError

    async with connected(server) as client:
        nodes = await client.nodes()
    if with_nodes and not any(node.alive and not node.draining for node in nodes):
        raise PolarError(
            f"{server} has no live node to run sessions: start one with `polar gateway --server {server}`, or "
            "wait until `polar up` prints that it is ready"
        )


def one_reason(error: BaseException) -> str:
    from polar.tls import cause_of

    reason = cause_of(error.__cause__ or error)
    number = getattr(reason, "errno", None) or 0
    if number > 0:
        return os.strerror(number)
    # asyncio has no words for a connection that ends within the TLS handshake.
    return str(getattr(reason, "strerror", None) or reason) or "the connection broke off"
