"""Access control: trainers use the control token, new nodes the node token, registered nodes their own key. A
browser that has logged in with the control token has a cookie in its place.

The check runs before the body is read. No secret appears in a message or a log.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from polar.config import is_loopback
from polar.server.access import login
from polar.server.access.actions import UNDER_WAY, ActionUnderWay, Actor, RefusalLimit
from polar.server.access.login import LOOPBACK_NAMES, SAFE_METHODS, cookie_name, from_own_page, known_host
from polar.server.access.tokens import ServiceTokens, TokenTable, fingerprint
from polar.server.errors import ApiError, ErrorBody, Forbidden, Unauthorized
from polar.server.records.nodes import keys_of, sha256
from polar.server.state import State
from polar.store.database import StoreError
from polar.types import TokenKind

log = logging.getLogger("polar.server")
Check = Callable[[Request], Awaitable[Actor | None]]
"""Raises if the request may not be made; else says whose it is, if that is to be recorded."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Access:
    """One check for each kind of route."""

    def __init__(self, tokens: ServiceTokens, state: State) -> None:
        self.tokens = TokenTable(state, tokens)
        self._metrics = sha256(tokens.metrics) if tokens.metrics else None
        self._state = state
        self._refusals = RefusalLimit()
        config = state.config
        self._names = (*LOOPBACK_NAMES, config.host, *config.names) if is_loopback(config.host) else ()

    async def control(self, request: Request) -> Actor:
        """The control token; from a browser the cookie. Of the two, a token that is given decides."""
        if "authorization" not in request.headers and (found := await self.logged_in(request)):
            if request.method not in SAFE_METHODS and not from_own_page(request):
                raise Forbidden("a browser may change something only from a page of this server")
            return Actor("login", fingerprint(found.token), address_of(request))
        return Actor("token", fingerprint(await self._check(request, "control")), address_of(request))

    async def token_itself(self, request: Request) -> Actor:
        """The control token, and no cookie: what makes other tokens must not be had by a browser alone."""
        return Actor("token", fingerprint(await self._check(request, "control")), address_of(request))

    async def metrics(self, request: Request) -> None:
        """The metrics token, or what the control plane takes."""
        if self._metrics is None or not hmac.compare_digest(sha256(bearer(request)), self._metrics):
            await self.control(request)

    async def logged_in(self, request: Request) -> login.Login | None:
        """The login whose cookie the request has, under a name of this server."""
        value = request.cookies.get(cookie_name(request), "")
        if not value or not self.named(request):
            return None
        found = await self._state.read(login.find, value)
        if found is None or self._state.clock() >= found.expires:
            return None
        await self.tokens.keep_fresh()
        return found if self.tokens.is_live("control", found.token) else None

    def named(self, request: Request) -> bool:
        """Whether the request uses a name of this server. One that does not listen on loopback has any name."""
        return known_host(request, self._names)

    async def registration(self, request: Request) -> Actor:
        return Actor("node token", fingerprint(await self._check(request, "node")), address_of(request))

    async def node(self, request: Request) -> None:
        node_id, given = str(request.path_params["node_id"]), sha256(bearer(request))
        kept: tuple[str, ...] = ()
        if "\0" not in node_id:  # PostgreSQL cannot store it
            kept = await self._state.read(keys_of, node_id, self._state.clock())
        if not any([hmac.compare_digest(given, key) for key in kept or ("-" * len(given),)]):
            raise Unauthorized("unknown node or wrong key; register again")

    async def record_refusal(self, refused: ActionUnderWay, error: Exception) -> None:
        """Of a client without a valid token only so many."""
        left_out = self._refusals.admit() if refused.actor.by == "unknown" else 0
        if left_out is None:
            return
        more = {"left_out": left_out} if left_out else {}
        status = error.status if isinstance(error, ApiError) else 422
        why = str(error) if isinstance(error, ApiError) else "the request is malformed"
        try:
            await self._state.record(refused.about(status=status, why=why, **more))
        except StoreError as problem:
            log.warning("a refusal is not recorded: %s", problem)

    async def _check(self, request: Request, kind: TokenKind) -> str:
        """The hash of the token."""
        found = await self.tokens.check(kind, bearer(request))
        if found is None:
            raise Unauthorized(f"this needs the {kind} token: Authorization: Bearer <POLAR_{kind.upper()}_TOKEN>")
        return found


def bearer(request: Request) -> str:
    """The bearer token; empty if there is none."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def guarded_router(check: Check, tag: str, *, token: bool = True, record: Access | None = None) -> APIRouter:
    """A router whose routes run `check` first and accept strict JSON only. `token`: the OpenAPI page says that
    they take a bearer token; `check` decides. `record`: what they change is a control action, and so is what they
    refuse; None: neither is recorded."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()
            action = f"{tag}.{self.name}"
            reads = self.path.endswith("/query") or set(self.methods or ()) <= set(SAFE_METHODS)

            async def check_first(request: Request) -> Response:
                unknown = ActionUnderWay(Actor("unknown", address=address_of(request)), action, "refused")
                try:
                    actor = await check(request)
                except ApiError as error:
                    if record is not None:
                        await record.record_refusal(unknown, error)
                    raise
                strict = StrictRequest(request.scope, request.receive)
                if record is None or actor is None or reads:
                    return await handle(strict)
                return await _recorded(record, ActionUnderWay(actor, action, detail=request.path_params), strict)

            async def _recorded(record: Access, done: ActionUnderWay, request: Request) -> Response:
                before = UNDER_WAY.set(done)
                try:
                    return await handle(request)
                except (ApiError, RequestValidationError) as error:
                    await record.record_refusal(replace(done, outcome="refused"), error)
                    raise
                finally:
                    UNDER_WAY.reset(before)

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
