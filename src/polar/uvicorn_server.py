"""HTTP on the current event loop: what the gateway and the rollout server share of uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from polar.bounded_http import BoundedHttp, HttpLimits, OpenConnections
from polar.tls import TlsCertificate
from polar.tls_server import TlsServer

TICK_S = 1.0
"""Replies bear a date that is renewed so often."""
ACCEPTED_S = 0.01
"""For a connection that was just being accepted to count among the open ones."""


class UvicornServer(uvicorn.Server):
    """Silent, and without signal handlers: those belong to the process that runs it."""

    def __init__(
        self,
        app: Any,
        *,
        http: type[BoundedHttp] = BoundedHttp,
        limits: HttpLimits | None = None,
        certificate: TlsCertificate | None = None,
    ) -> None:
        """`certificate`: None for HTTP without TLS."""
        connections = OpenConnections(limits or HttpLimits())
        # uvicorn makes each connection by calling this. Without WebSockets an upgrade is an ordinary request.
        protocol: Any = partial(http, open_connections=connections)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            http=protocol,
            ws="none",
        )
        super().__init__(config)
        self._certificate = certificate
        self._tls_servers: list[TlsServer] = []
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Lets `serve` return, once open requests are answered."""
        self.should_exit = True
        self._ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            self._serve_tls(self._certificate, sockets or [])

    def _serve_tls(self, certificate: TlsCertificate, sockets: list[socket.socket]) -> None:
        served = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        connection = partial(self.config.http_protocol_class, **served)
        self.servers = []
        self._tls_servers = [TlsServer(one, lambda: certificate.context, connection) for one in sockets]
        self.started = True

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second whether it is to end."""
        while not await self.on_tick(0):  # which renews the date that replies bear
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self._tls_servers:
            server.close()
            await server.wait_closed()
        for accepting in (*self.servers, *(sockets or ())):
            accepting.close()
        await asyncio.sleep(ACCEPTED_S)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def until_started(self, serving: asyncio.Task[None]) -> None:
        """Waits until requests are answered; raises the error of `serving`, the task that runs the server."""
        while not self.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.01)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=2048)
    # Connections inherit this option. asyncio sets it only on sockets that name TCP as their protocol, which this
    # one does not, and without it the second write of a reply waits 40 ms for the acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def why_not(error: OSError) -> str:
    """Why `listen` failed, without the address, which Python appends."""
    return (error.strerror or str(error)).partition(" (while attempting")[0]


def address_of(listening: socket.socket, scheme: str = "http") -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
