"""The server's HTTP app: routes and error handlers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from polar import __version__
from polar.config import ServerConfig
from polar.server.access.auth import Access
from polar.server.access.tokens import ServiceTokens
from polar.server.api_page import api_page
from polar.server.body_limit import BodyLimit
from polar.server.errors import ApiError
from polar.server.routes.access import AccessRoutes
from polar.server.routes.events import EventRoutes
from polar.server.routes.groups import GroupRoutes
from polar.server.routes.login import LoginRoutes
from polar.server.routes.nodes import NodeRoutes
from polar.server.routes.overview import OverviewRoutes
from polar.server.routes.sessions import SessionRoutes
from polar.server.routes.status import StatusRoutes
from polar.server.routes.storage import StorageRoutes
from polar.server.routes.tasks import TaskRoutes
from polar.server.routes.training import TrainingRoutes
from polar.server.state import State
from polar.store.blobs.base import BlobMissing, BlobStoreError
from polar.store.database import StoreError
from polar.store.server_database import database_of
from polar.store.writer import DatabaseWriter

log = logging.getLogger("polar.server")
NO_OTHER_HOST = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"}
Pages = Callable[[State, Access], Sequence[APIRouter]]
"""Makes the routes of the dashboard, which stands above the server."""


def make_app(state: State, tokens: ServiceTokens, pages: Pages | None = None) -> FastAPI:
    # FastAPI's own pages load scripts from another host.
    own: dict[str, Any] = {"docs_url": None, "redoc_url": None}
    app = FastAPI(title="Polar rollout server", version=__version__, redirect_slashes=False, **own)
    access = app.state.access = Access(tokens, state)
    routers = [
        TaskRoutes(state).router(access),
        GroupRoutes(state).router(access),
        SessionRoutes(state).router(access),
        EventRoutes(state).router(access),
        TrainingRoutes(state).router(access),
        OverviewRoutes(state).router(access),
        StorageRoutes(state).router(access),
        *NodeRoutes(state).routers(access),
        *StatusRoutes(state).routers(access),
        LoginRoutes(state, access).router(),
        *AccessRoutes(state, access).routers(),
        *(pages(state, access) if pages else ()),
    ]
    for router in routers:  # as they are: `include_router` would make each route a second time
        app.router.routes.extend(router.routes)
    app.get("/docs", include_in_schema=False)(lambda: HTMLResponse(api_page(app.openapi()), headers=NO_OTHER_HOST))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StoreError, _database_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(BodyLimit, config=state.config)
    return app


def openapi_document(pages: Pages | None = None) -> dict[str, Any]:
    """The API of a server that need not run."""
    config = ServerConfig(database="sqlite://")
    state = State(DatabaseWriter(database_of(config.database)), config, time.time)
    return make_app(state, ServiceTokens("control", "node"), pages).openapi()


def _answer(status: int, detail: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"detail": detail}, status, headers)


def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return _answer(error.status, str(error))


def _malformed(_: Request, error: Exception) -> JSONResponse:
    """Names each field and its problem, without repeating the input."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors()]
    return _answer(422, "; ".join(problems[:5]))


def _database_error(_: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    if isinstance(error, BlobMissing):
        return _answer(500, str(error))
    what = "blob store" if isinstance(error, BlobStoreError) else "database"
    return _answer(503, f"the server's {what} failed; try again, and see the server's log")


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    extra = {"session_id": request.path_params.get("session_id")}
    log.error("%s %s failed", request.method, request.url.path, exc_info=error, extra=extra)
    return _answer(500, "the server failed to handle this request; see its log")
