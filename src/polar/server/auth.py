"""Access control: trainers use the control token, new nodes the node token, registered nodes their own key.

The check runs before the body is read. No secret appears in a message or a log.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from polar.server.errors import ErrorBody, Unauthorized
from polar.server.records.nodes import key_sha256_of, sha256
from polar.server.state import State

Check = Callable[[Request], Awaitable[None]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class ServiceTokens:
    control: str = field(repr=False)
    node: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.control or not self.node or self.control == self.node:
            raise ValueError("the control token and the node token must be set, and must differ")


class Access:
    """One check for each kind of route."""

    def __init__(self, tokens: ServiceTokens, state: State) -> None:
        self._tokens = tokens
        self._state = state

    async def control(self, request: Request) -> None:
        _check(request, self._tokens.control, "control")

    async def registration(self, request: Request) -> None:
        _check(request, self._tokens.node, "node")

    async def node(self, request: Request) -> None:
        node_id, given = str(request.path_params["node_id"]), sha256(bearer(request))
        kept = None
        if "\0" not in node_id:  # PostgreSQL cannot store it
            kept = await self._state.read(key_sha256_of, node_id)
        if not hmac.compare_digest(given, kept or "-" * len(given)):
            raise Unauthorized("unknown node or wrong key; register again")


def bearer(request: Request) -> str:
    """The bearer token; empty if there is none."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _check(request: Request, token: str, kind: str) -> None:
    if not hmac.compare_digest(sha256(bearer(request)), sha256(token)):
        raise Unauthorized(f"this needs the {kind} token: Authorization: Bearer <POLAR_{kind.upper()}_TOKEN>")


def guarded_router(check: Check, tag: str) -> APIRouter:
    """A router whose routes run `check` first and accept strict JSON only."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def check_first(request: Request) -> Response:
                await check(request)
                return await handle(StrictRequest(request.scope, request.receive))

            return check_first

    return APIRouter(
        route_class=GuardedRoute,
        dependencies=[Security(HTTPBearer(auto_error=False))],  # for the OpenAPI page; `check` decides
        tags=[tag],
        responses={401: {"model": ErrorBody}, 413: {"model": ErrorBody}, 422: {"model": ErrorBody}},
    )


class StrictRequest(Request):
    """Standard JSON only: no NaN, no lone surrogates, limited nesting."""

    async def json(self) -> Any:
        try:
            return orjson.loads(await self.body())
        except orjson.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, "", error.pos) from None
