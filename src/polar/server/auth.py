"""Access control: trainers use the control token, new nodes the node token, registered nodes their own key. A
browser that has logged in with the control token has a cookie in its place.

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

from polar.config import is_loopback
from polar.server.errors import ErrorBody, Forbidden, Unauthorized
from polar.server.login import LOOPBACK_NAMES, SAFE_METHODS, LoginCookies, cookie_name, from_own_page, known_host
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
        self._cookies = LoginCookies(tokens.control)
        config = state.config
        self._names = (*LOOPBACK_NAMES, config.host, *config.names) if is_loopback(config.host) else ()

    async def control(self, request: Request) -> None:
        """The control token; from a browser the cookie. Of the two, a token that is given decides."""
        if "authorization" in request.headers or not self.logged_in(request):
            _check(request, self._tokens.control, "control")
        elif request.method not in SAFE_METHODS and not from_own_page(request):
            raise Forbidden("a browser may change something only from a page of this server")

    def logged_in(self, request: Request) -> bool:
        """Whether the request has the cookie of a login, under a name of this server."""
        value = request.cookies.get(cookie_name(request), "")
        return self.named(request) and self._cookies.valid(value, self._state.clock())

    def named(self, request: Request) -> bool:
        """Whether the request uses a name of this server. One that does not listen on loopback has any name."""
        return known_host(request, self._names)

    def login(self, token: str) -> str | None:
        """The value of a new cookie; None: the token is wrong."""
        right = hmac.compare_digest(sha256(token), sha256(self._tokens.control))
        return self._cookies.make(self._state.clock()) if right else None

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


def guarded_router(check: Check, tag: str, *, token: bool = True) -> APIRouter:
    """A router whose routes run `check` first and accept strict JSON only. `token`: the OpenAPI page says that
    they take a bearer token; `check` decides."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def check_first(request: Request) -> Response:
                await check(request)
                return await handle(StrictRequest(request.scope, request.receive))

            return check_first

    return APIRouter(
        route_class=GuardedRoute,
        dependencies=[Security(HTTPBearer(auto_error=False))] if token else [],
        tags=[tag],
        responses={status: {"model": ErrorBody} for status in (401, 403, 413, 422)},
    )


class StrictRequest(Request):
    """Standard JSON only: no NaN, no lone surrogates, limited nesting."""

    async def json(self) -> Any:
        try:
            return orjson.loads(await self.body())
        except orjson.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, "", error.pos) from None
