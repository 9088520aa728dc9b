"""Listeners: sockets of the gateway inside the networks of single sessions.

A session that opens connections or sends bodies without end must not use up the descriptors and the memory of the
node, so both are bounded for each listener.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, NamedTuple

import uvicorn
from uvicorn.server import ServerState

from polar.gateway.http.bodies import too_large
from polar.gateway.http.connection import AsgiMessage, GatewayHttp, Receive, Send
from polar.uvicorn_server import address_of

LISTENER_OF = "polar.listener"
"""In the scope of a request that came through a session's own listener: the session's id."""
LISTENER_CONNECTIONS = 256
"""Open at once at one listener; further ones are closed at once."""
LISTENER_BODIES = 16
"""How many bodies of the largest size may be under way at one listener."""


class ListenerApp:
    """The gateway's app at one session's listener. Only that session's key works there."""

    def __init__(self, app: Any, session_id: str, most_bytes: int) -> None:
        self._app = app
        self._session_id = session_id
        self._room_bytes = most_bytes

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


class Listener(NamedTuple):
    server: asyncio.Server
    connections: set[ListenerHttp]


class SessionListeners:
    """All listeners of a gateway."""

    def __init__(self, app: Any, config: uvicorn.Config, state: ServerState, max_body_bytes: int) -> None:
        self._app = app
        self._config = config
        self._state = state
        self._max_body_bytes = max_body_bytes
        self._listeners: dict[str, Listener] = {}

    async def open(self, session_id: str, listener: socket.socket) -> str:
        """Serves a session at a socket that listens in its own network; returns the base URL seen there."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = ListenerApp(self._app, session_id, self._max_body_bytes * LISTENER_BODIES)
        connections = set[ListenerHttp]()

        def connection() -> ListenerHttp:
            return ListenerHttp(connections=connections, app=app, config=self._config, server_state=self._state)

        address = address_of(listener)
        server = await asyncio.get_running_loop().create_server(connection, sock=listener)
        self._listeners[session_id] = Listener(server, connections)
        return address

    async def close(self, session_id: str) -> None:
        listener = self._listeners.pop(session_id, None)
        if listener is not None:
            listener.server.close()
            for connection in tuple(listener.connections):
                connection.transport.abort()

    async def close_all(self) -> None:
        for session_id in tuple(self._listeners):
            await self.close(session_id)
