"""Routes for those who watch machines: metrics, and whether the server is alive and ready."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from polar.monitoring.exposition import CONTENT_TYPE, exposition
from polar.monitoring.readiness import Readiness
from polar.server.access.auth import Access, guarded_router
from polar.server.state import State
from polar.server.status.checks import checks_of
from polar.server.status.reading import read

_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_READY: dict[int | str, dict[str, Any]] = {503: {"description": "A part does not work; `checks` says which"}}


class StatusRoutes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._readiness = Readiness(checks_of(state))

    def routers(self, access: Access) -> list[APIRouter]:
        """Probers have no token: whether the server is alive and ready is for everyone who reaches it."""
        open_to_all = APIRouter(tags=["health"])
        open_to_all.get("/healthz", summary="Ask whether the server runs")(healthz)
        ready: dict[str, Any] = {"response_class": JSONResponse, "response_model": None, "responses": _READY}
        open_to_all.get("/readyz", summary="Ask whether the server can work", **ready)(self.readyz)
        if self._state.config.metrics == "off":
            return [open_to_all]
        is_open = self._state.config.metrics == "open"
        scraped = APIRouter(tags=["health"]) if is_open else guarded_router(access.metrics, "health")
        text: dict[str, Any] = {
            "response_class": Response,
            "response_model": None,
            "responses": {200: {"content": _TEXT}},
        }
        scraped.get("/metrics", summary="Read metrics, as Prometheus does", **text)(self.metrics)
        return [open_to_all, scraped]

    async def metrics(self) -> Response:
        """In the text format of Prometheus. Takes the metrics token or the control token, unless `server.metrics`
        is "open"."""
        reading = await self._state.read(read, self._state.clock(), self._state.alive_since)
        return Response(exposition(self._state.counts.meters, reading), media_type=CONTENT_TYPE)

    async def readyz(self) -> JSONResponse:
        """Writes to the database and the blob store. 503: something does not work; `checks` has the reason for
        each part. Without a token."""
        report = await self._readiness.report()
        return JSONResponse(report.body(), report.status)


async def healthz() -> dict[str, str]:
    """Whether the process answers. Without a token. It looks at neither the database nor the nodes: restart a
    server that does not answer here, and send no one to one that is not ready (`/readyz`)."""
    return {"status": "ok"}
