"""The server's HTTP app: its routes, and how everything that goes wrong is said."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from polar import __version__
from polar.server.auth import Door, Tokens
from polar.server.bodies import BoundedBodies
from polar.server.refusals import Refused
from polar.server.routes.events import EventRoutes
from polar.server.routes.nodes import NodeRoutes
from polar.server.routes.sessions import SessionRoutes
from polar.server.routes.tasks import TaskRoutes
from polar.server.state import State
from polar.store.database import StoreError

log = logging.getLogger("polar.server")


def make_app(state: State, tokens: Tokens) -> FastAPI:
    app = FastAPI(title="Polar rollout server", version=__version__, redirect_slashes=False)
    door = Door(tokens, state)
    routers = [
        TaskRoutes(state).router(door),
        SessionRoutes(state).router(door),
        EventRoutes(state).router(door),
        *NodeRoutes(state).routers(door),
    ]
    for router in routers:
        app.include_router(router)
    app.get("/healthz", tags=["health"])(healthz)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(StoreError, _no_database)
    app.add_exception_handler(Exception, _defect)
    app.add_middleware(BoundedBodies, config=state.config)
    return app


async def healthz() -> dict[str, str]:
    return {"status": "ok"}


def _answer(status: int, detail: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"detail": detail}, status, headers)


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return _answer(error.status, str(error))


def _malformed(_: Request, error: Exception) -> JSONResponse:
    """Names the fields and what is wrong, and does not repeat what was sent."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors()]
    return _answer(422, "; ".join(problems[:5]))


def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _no_database(_: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    return _answer(503, "the server's database does not do what it should; try again, and see the server's log")


def _defect(request: Request, error: Exception) -> JSONResponse:
    told = {"session_id": request.path_params.get("session_id")}
    log.error("%s %s failed", request.method, request.url.path, exc_info=error, extra=told)
    return _answer(500, "the server failed at this request; its log says where")
