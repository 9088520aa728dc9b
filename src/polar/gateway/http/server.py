"""The gateway's web application and its server."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any, NamedTuple

from starlette.applications import Starlette

from polar.config import GatewayConfig
from polar.gateway.calls.call_service import Exchange
from polar.gateway.calls.threads import CallThreads
from polar.gateway.http.connection import Receive, Send
from polar.gateway.http.handler import LISTENER_OF, Service
from polar.gateway.http.limits import LISTENER_BODIES, BoundedBodies, BoundedHttp, ListenerHttp
from polar.gateway.http.routes import make_routes, model_routes, not_found, wrong_method
from polar.gateway.slots import SlotTable
from polar.uvicorn_server import UvicornServer, address_of, listen

DOUBLED_VERSION = re.compile(r"^(?:/v1(?:beta)?)+(?=/v1(?:beta)?/)")


class GatewayApp:
    """All routes. A version that stands twice in a path, from a base URL and from a client, counts once."""

    def __init__(
        self, slots: SlotTable, exchange: Exchange, config: GatewayConfig, threads: CallThreads | None = None
    ) -> None:
        service = Service(slots, exchange, config, threads or CallThreads())
        handlers: dict[Any, Any] = {404: not_found, 405: wrong_method}
        self._inner = Starlette(routes=make_routes(service), exception_handlers=handlers)
        self._inner.router.redirect_slashes = False
        self._model_routes = model_routes(service)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path = scope["path"] = DOUBLED_VERSION.sub("", scope["path"])
        # Nearly every request is a model call: it does not pass through the layers of the framework.
        route = self._model_routes.get(path) if scope["method"] == "POST" else None
        await (route or self._inner)(scope, receive, send)


class ListenerApp:
    """What is served at one session's own socket: the same routes, and only that session's key opens them."""

    def __init__(self, app: GatewayApp, session_id: str) -> None:
        self._app = app
        self._session_id = session_id

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope[LISTENER_OF] = self._session_id
        await self._app(scope, receive, send)


class _Listener(NamedTuple):
    server: asyncio.Server
    guests: set[ListenerHttp]
    """Its open connections."""


class GatewayServer:
    """Serves the app on the node's own event loop."""

    def __init__(self, app: GatewayApp, config: GatewayConfig) -> None:
        self._socket = listen(config.host, config.port)
        # Without WebSockets an upgrade is an ordinary request, which its route refuses.
        self._server = UvicornServer(app, http=BoundedHttp, ws="none")
        self._app = app
        self._most_listener_bytes = config.max_body_bytes * LISTENER_BODIES
        self._listeners: dict[str, _Listener] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        return address_of(self._socket)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await self._server.until_started(self._task)

    async def open_listener(self, session_id: str, listener: socket.socket) -> str:
        """Serves a session at a socket that listens in its own network; gives the base URL seen there."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = BoundedBodies(ListenerApp(self._app, session_id), self._most_listener_bytes)
        config, state = self._server.config, self._server.server_state
        guests = set[ListenerHttp]()

        def connection() -> ListenerHttp:
            return ListenerHttp(guests=guests, app=app, config=config, server_state=state)

        address = address_of(listener)
        server = await asyncio.get_running_loop().create_server(connection, sock=listener)
        self._listeners[session_id] = _Listener(server, guests)
        return address

    async def close_listener(self, session_id: str) -> None:
        door = self._listeners.pop(session_id, None)
        if door is not None:
            door.server.close()
            for guest in tuple(door.guests):
                guest.transport.abort()

    async def stop(self) -> None:
        for session_id in tuple(self._listeners):
            await self.close_listener(session_id)
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
