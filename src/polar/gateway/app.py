"""The gateway's routes and its server. Explicit routes only: any other path is 404 and recorded nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polar.config import GatewayConfig
from polar.gateway.dialects.base import Dialect, Problem
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.exchange import Exchange
from polar.gateway.handler import ModelRoute, authenticate
from polar.gateway.slots import SlotTable

GENERATION_ROUTES: dict[str, type[Dialect]] = {"/v1/chat/completions": OpenAIChat}


def make_app(slots: SlotTable, exchange: Exchange, config: GatewayConfig) -> Starlette:
    routes = [
        Route(path, ModelRoute(dialect(), slots, exchange, config), methods=["POST"])
        for path, dialect in GENERATION_ROUTES.items()
    ]
    chat = OpenAIChat()

    async def models(request: Request) -> Response:
        try:
            authenticate(slots, request.headers)
        except Problem as problem:
            return _problem(chat, problem)
        entry = {"id": exchange.model, "object": "model", "created": 0, "owned_by": "polar"}
        return Response(orjson.dumps({"object": "list", "data": [entry]}), media_type="application/json")

    async def not_found(request: Request, _: Exception) -> Response:
        if (request.method, request.url.path) == ("HEAD", "/"):  # harnesses ask so whether anybody is there
            return Response()
        return _problem(chat, Problem(404, "unknown_path", f"no such path: {request.method} {request.url.path}"))

    async def wrong_method(request: Request, _: Exception) -> Response:
        return _problem(chat, Problem(405, "wrong_method", f"{request.url.path} does not take {request.method}"))

    routes.append(Route("/v1/models", models, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={404: not_found, 405: wrong_method})
    app.router.redirect_slashes = False
    return app


def _problem(dialect: Dialect, problem: Problem) -> Response:
    error = dialect.error(problem)
    return Response(error.body, error.status, error.headers, media_type="application/json")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals belong to the process that owns the node, not to its gateway."""
        yield


class GatewayServer:
    """Serves the app on the node's own event loop."""

    def __init__(self, app: Starlette, config: GatewayConfig) -> None:
        self._socket = socket.create_server((config.host, config.port), backlog=2048)
        # Connections inherit it. asyncio sets it only where a socket names its protocol, which this one does not,
        # and without it the second write of a reply waits 40 ms for the client's acknowledgement of the first.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = _Server(
            uvicorn.Config(
                app,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                lifespan="off",
                timeout_graceful_shutdown=2,
                timeout_keep_alive=75,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}"

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
