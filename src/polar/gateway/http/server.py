"""The gateway's HTTP server, on the node's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from polar.config import GatewayConfig
from polar.gateway.http.connection import BoundedHttp
from polar.gateway.http.handler import GatewayApp
from polar.gateway.http.listeners import SessionListeners, base_url_of


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals belong to the process that owns the node, not to its gateway."""
        yield


class GatewayServer:
    def __init__(self, app: GatewayApp, config: GatewayConfig) -> None:
        self._socket = socket.create_server((config.host, config.port), backlog=2048)
        # Connections inherit it. asyncio sets it only where a socket names its protocol, which this one does not,
        # and without it the second write of a reply waits 40 ms for the client's acknowledgement of the first.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",  # an upgrade is then an ordinary request, which its route refuses
                timeout_graceful_shutdown=2,
                timeout_keep_alive=75,
            )
        )
        self.listeners = SessionListeners(
            app, self._server.config, self._server.server_state, config.max_body_bytes
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        return base_url_of(self._socket)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.listeners.close_all()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
