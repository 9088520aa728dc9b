"""Where a node answers `/metrics`, `/healthz` and `/readyz`: a listener apart from the gateway's, whose keys are
those of sessions."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from polar.bounded_http import HttpLimits
from polar.config import NodeConfig
from polar.errors import ConfigError
from polar.monitoring.exposition import CONTENT_TYPE, MetricSource, exposition
from polar.monitoring.readiness import Readiness
from polar.token_files import make_secret
from polar.uvicorn_server import UvicornServer, address_of, listen, why_not

LOGGER = logging.getLogger("polar.node")
MAX_CONNECTIONS = 64


class StatusApp:
    """`token` empty: everyone may read the metrics."""

    def __init__(self, sources: tuple[MetricSource, ...], readiness: Readiness, token: str) -> None:
        self._sources = sources
        self._readiness = readiness
        self._token = token

    def app(self) -> Starlette:
        routes = {"/metrics": self.metrics, "/healthz": self.healthz, "/readyz": self.readyz}
        return Starlette(routes=[Route(path, handler) for path, handler in routes.items()])

    async def metrics(self, request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if self._token and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            detail = "this needs the metrics token: Authorization: Bearer <POLAR_METRICS_TOKEN>"
            return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})
        return Response(exposition(*self._sources), media_type=CONTENT_TYPE)

    async def healthz(self, _: Request) -> Response:
        """The event loop answers."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        report = await self._readiness.report()
        return JSONResponse(report.body(), report.status)


@asynccontextmanager
async def status_listener(
    config: NodeConfig, sources: tuple[MetricSource, ...], readiness: Readiness
) -> AsyncGenerator[str]:
    """Yields its address."""
    assert config.metrics_port is not None, "a node without a port for metrics has no listener"
    token = "" if config.metrics == "open" else make_secret("metrics-token")
    try:
        listening = listen(config.metrics_host, config.metrics_port)
    except OSError as error:
        raise ConfigError(
            f"the node cannot serve metrics on {config.metrics_host}:{config.metrics_port}: {why_not(error)}; set "
            "another [node] metrics_port in polar.toml (0: any free one)"
        ) from error
    server = UvicornServer(StatusApp(sources, readiness, token).app(), limits=HttpLimits(MAX_CONNECTIONS))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.until_started(serving)
        LOGGER.info("metrics and health at %s", address_of(listening))
        yield address_of(listening)
    finally:
        server.end()
        await readiness.close()
        await asyncio.wait([serving])
        listening.close()
