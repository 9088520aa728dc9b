"""The gateway's HTTP server, on the node's own event loop."""

from __future__ import annotations

import asyncio

from polar.bounded_http import HttpLimits
from polar.config import GatewayConfig
from polar.errors import ConfigError
from polar.gateway.http.connection import GatewayHttp
from polar.gateway.http.handler import GatewayApp
from polar.gateway.http.listeners import SessionListeners
from polar.uvicorn_server import UvicornServer, address_of, listen, why_not


class GatewayServer:
    def __init__(self, app: GatewayApp, config: GatewayConfig) -> None:
        try:
            self._socket = listen(config.host, config.port)
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot listen on {config.host}:{config.port}: {why_not(error)}; set another"
                " [gateway] port in polar.toml (0: any free one)"
            ) from error
        limits = HttpLimits(config.max_connections, config.stalled_request_s)
        self._server = UvicornServer(app, http=GatewayHttp, limits=limits)
        self.listeners = SessionListeners(
            app, self._server.config, self._server.server_state, config.max_body_bytes
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        return address_of(self._socket)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await self._server.until_started(self._task)

    async def stop(self) -> None:
        await self.listeners.close_all()
        self._server.end()
        if self._task is not None:
            await self._task
        self._socket.close()
