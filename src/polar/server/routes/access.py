"""Routes of service tokens, and of the record of control actions, which they only read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from polar.server.access import actions, tokens
from polar.server.access.auth import Access, guarded_router
from polar.server.routes.parameters import CONFLICT, MAX_CURSOR
from polar.server.state import State
from polar.types import ActionPage, TokenKind, TokenRotation, TokenStatus

Place = Annotated[int | None, Query(ge=0, le=MAX_CURSOR)]
PageSize = Annotated[int, Query(ge=1, le=1000)]


class AccessRoutes:
    def __init__(self, state: State, access: Access) -> None:
        self._state = state
        self._access = access

    def routers(self) -> list[APIRouter]:
        reading = guarded_router(self._access.control, "access", record=self._access)
        reading.get("/v1/tokens", summary="List service tokens")(self.tokens)
        reading.get("/v1/actions", summary="Read the record of control actions")(self.actions)
        rotating = guarded_router(self._access.token_itself, "access", record=self._access)
        rotate = rotating.post("/v1/tokens/{kind}/rotate", summary="Rotate a service token", responses=CONFLICT)
        rotate(self.rotate)
        return [reading, rotating]

    async def tokens(self) -> list[TokenStatus]:
        """By fingerprint, also those that have ended. The server keeps hashes alone."""
        return await self._state.read(tokens.listing)

    async def rotate(self, kind: TokenKind, wanted: TokenRotation) -> TokenStatus:
        """Takes the hash of a new token, which is valid at once; those before it end after the overlap. A login
        ends with its token. Needs the control token itself: a browser's login is not enough."""
        status = await self._state.change(tokens.rotate, kind, wanted)
        await self._access.tokens.refresh()
        return status

    async def actions(self, after: Place = None, before: Place = None, limit: PageSize = 100) -> ActionPage:
        """The newest, also of those before a cursor, or the first after one. Who did what, from where, and what
        was refused."""
        return await self._state.read(actions.page, after, limit, before)
