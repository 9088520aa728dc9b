"""Listeners: sockets of the gateway inside the networks of single sessions, plain and, by choice, TLS on port 443.

A session that opens connections or sends bodies without end must not use up the descriptors and the memory of the
node, so both are bounded for each listener.
"""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from polar.gateway.http.bodies import too_large
from polar.gateway.http.connection import AsgiMessage, GatewayHttp, Receive, Send
from polar.tls_server import TlsServer
from polar.types import SessionSockets
from polar.uvicorn_server import address_of

LISTENER_OF = "polar.listener"
"""In the scope of a request that came through a session's own listener: the session's id."""
INTERCEPTED = "polar.intercepted"
"""In the scope of a request that came to a name that the session intercepts: True."""
LISTENER_CONNECTIONS = 256
"""Open at once in one session's network; further ones are closed at once."""
LISTENER_BODIES = 16
"""How many bodies of the largest size may be under way in one session's network."""
PROVIDER_PREFIX = re.compile(r"^(?:/(?!v1(?:beta)?/)[^/]+)+(?=/v1(?:beta)?/)")
"""What some providers have before the version in their paths, such as `/api/v1/chat/completions`."""


class ListenerApp:
    """The gateway's app at one session's listener. Only that session's key works there."""

    def __init__(self, app: Any, session_id: str, most_bytes: int) -> None:
        self._app = app
        self._session_id = session_id
        self._room_bytes = most_bytes

    async def intercepted(self, scope: Any, receive: Receive, send: Send) -> None:
        """A request that the program sent to its provider. It may have any key of its own, or none."""
        scope[INTERCEPTED] = True
        scope["path"] = PROVIDER_PREFIX.sub("", scope["path"])
        await self(scope, receive, send)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope[LISTENER_OF] = self._session_id
        held_bytes = 0

        async def counted() -> AsgiMessage:
            nonlocal held_bytes
            message = await receive()
            size_bytes = len(message.get("body", b""))
            if size_bytes > self._room_bytes:
                raise too_large()
            held_bytes += size_bytes
            self._room_bytes -= size_bytes
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._room_bytes += held_bytes


class ListenerHttp(GatewayHttp):
    """A connection at a session's listener."""

    def __init__(self, *, connections: set[ListenerHttp], app: Any, **served: Any) -> None:
        super().__init__(**served, app_state={})
        self._connections = connections
        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self._connections) < LISTENER_CONNECTIONS:
            self._connections.add(self)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)


@dataclass
class _SessionServers:
    """What serves one session's network."""

    servers: list[asyncio.Server | TlsServer] = field(default_factory=list[asyncio.Server | TlsServer])
    connections: set[ListenerHttp] = field(default_factory=set[ListenerHttp])

    def has_room(self, handshakes: int) -> bool:
        return len(self.connections) + handshakes < LISTENER_CONNECTIONS

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for connection in tuple(self.connections):
            connection.transport.abort()


class SessionListeners:
    """All listeners of a gateway."""

    def __init__(self, app: Any, config: uvicorn.Config, state: ServerState, max_body_bytes: int) -> None:
        self._app = app
        self._config = config
        self._state = state
        self._max_body_bytes = max_body_bytes
        self._by_session: dict[str, _SessionServers] = {}

    async def open(self, session_id: str, sockets: SessionSockets) -> str:
        """Serves a session at sockets that listen in its own network; returns the base URL seen there, empty
        without a plain socket."""
        app = ListenerApp(self._app, session_id, self._max_body_bytes * LISTENER_BODIES)
        session = self._by_session[session_id] = _SessionServers()
        served = {"connections": session.connections, "config": self._config, "server_state": self._state}
        address = ""
        if sockets.plain is not None:
            address = address_of(_without_delay(sockets.plain))
            connection = partial(ListenerHttp, app=app, **served)
            loop = asyncio.get_running_loop()
            session.servers.append(await loop.create_server(connection, sock=sockets.plain))
        if sockets.https is not None:
            listener, context = sockets.https
            connection = partial(ListenerHttp, app=app.intercepted, **served)
            session.servers.append(
                TlsServer(_without_delay(listener), lambda: context, connection, session.has_room)
            )
        return address

    async def close(self, session_id: str) -> None:
        session = self._by_session.pop(session_id, None)
        if session is not None:
            session.close()

    async def close_all(self) -> None:
        for session_id in tuple(self._by_session):
            await self.close(session_id)


def _without_delay(listener: socket.socket) -> socket.socket:
    """Connections inherit the option: see `uvicorn_server.listen`."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
