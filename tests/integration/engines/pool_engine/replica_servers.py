"""Servers that come and go at a fixed address, and pools over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web
from fake_vllm import FakeVllm

from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec
from ports import port_to_come_back_to

QUICK: dict[str, Any] = {"check_s": 0.05, "patience_s": 60.0}
"""Options with which a test does not wait for the next check."""

OpenPool = Callable[..., Awaitable[Any]]


class ReplicaServer:
    """One fake server. It keeps its address when it is stopped and started again."""

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self._runner: web.AppRunner | None = None
        self._port = port_to_come_back_to()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def up(self) -> None:
        self._runner = web.AppRunner(self.fake.app(), shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()

    async def down(self) -> None:
        """Cuts all connections."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        # A connection that was accepted just before reaches aiohttp some turns of the loop later, and only
        # then does cleanup() close it.
        for _ in range(5):
            await asyncio.sleep(0)
        await runner.cleanup()


class ReplicaServers:
    """Fakes of vLLM, and pools over them that are stopped at the end."""

    def __init__(self, vocabulary: Vocabulary, stack: AsyncExitStack) -> None:
        self.vocabulary = vocabulary
        self._stack = stack

    async def up(self, fake: Any = None, **options: Any) -> ReplicaServer:
        server = ReplicaServer(fake or FakeVllm(self.vocabulary, **options))
        await server.up()
        self._stack.push_async_callback(server.down)
        return server

    def pool(self, *servers: ReplicaServer, **options: Any) -> Any:
        """Not started."""
        spec = {"engine": "vllm", "urls": [server.url for server in servers], "options": {"parallel": 4}}
        pool = make("engine", Spec(name="pool", options={**spec, **QUICK, **options}))
        self._stack.push_async_callback(pool.stop)
        return pool


def session_of(pool: Any, server: ReplicaServer, start: int = 0) -> str:
    """A session whose calls go to this replica."""
    from polar.engines.pool.affinity import ranked

    replicas = pool._set.replicas
    names = (f"session-{number}" for number in range(start, start + 1000))
    return next(name for name in names if ranked(name, replicas)[0].name == server.url)
