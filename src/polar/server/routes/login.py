"""Routes with which a browser logs in and out."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from polar.server.access.actions import UNDER_WAY, ActionUnderWay, Actor
from polar.server.access.auth import Access, address_of, guarded_router
from polar.server.access.login import LOGIN_S, begin, by_https, cookie_name, end, from_own_page
from polar.server.access.tokens import fingerprint
from polar.server.errors import ErrorBody, Forbidden, TooManyTries, Unauthorized
from polar.server.state import State
from polar.types import Strict

WRONG_TRY_S = 0.5
"""A wrong token is answered after this pause, one request after another."""
MOST_WAITING = 20
"""So many wrong tries may wait; more are refused at once."""


class LoginRequest(Strict):
    token: str = Field(min_length=1, max_length=1000, repr=False)
    """The control token."""


class LoginRoutes:
    def __init__(self, state: State, access: Access) -> None:
        self._state = state
        self._access = access
        self._one_by_one = asyncio.Lock()
        self._waiting = 0

    def router(self) -> APIRouter:
        router = guarded_router(self._own_page, "login", token=False, record=self._access)
        options: dict[str, Any] = {"status_code": 204, "response_class": Response}
        many: dict[int | str, dict[str, Any]] = {429: {"model": ErrorBody}}
        router.post("/login", summary="Log a browser in", responses=many, **options)(self.login)
        router.post("/logout", summary="Log a browser out", **options)(self.logout)
        return router

    async def login(self, request: Request, given: LoginRequest) -> Response:
        """Takes the control token, and sets a cookie that other routes accept in its place for a week."""
        token = await self._access.tokens.check("control", given.token)
        if token is None:
            await self._pause()
            raise Unauthorized("this is not the server's control token")
        UNDER_WAY.set(ActionUnderWay(Actor("login", fingerprint(token), address_of(request)), "login.login"))
        value = await self._state.change(begin, token)
        answer = Response(status_code=204)
        flags: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": by_https(request)}
        answer.set_cookie(cookie_name(request), value, max_age=LOGIN_S, path="/", **flags)
        return answer

    async def logout(self, request: Request) -> Response:
        """Ends the login, and removes the cookie from the browser."""
        if found := await self._access.logged_in(request):
            actor = Actor("login", fingerprint(found.token), address_of(request))
            UNDER_WAY.set(ActionUnderWay(actor, "login.logout"))
            await self._state.change(end, request.cookies[cookie_name(request)])
        answer = Response(status_code=204)
        answer.delete_cookie(cookie_name(request), path="/", httponly=True, samesite="strict")
        return answer

    async def _own_page(self, request: Request) -> Actor:
        if not self._access.named(request) or not from_own_page(request):
            raise Forbidden("a browser logs in at the page /login of this server, under one of the server's names")
        return Actor("unknown", address=address_of(request))

    async def _pause(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise TooManyTries("too many logins with a wrong token; try again in a few seconds")
        self._waiting += 1
        try:
            async with self._one_by_one:
                await asyncio.sleep(WRONG_TRY_S)
        finally:
            self._waiting -= 1
