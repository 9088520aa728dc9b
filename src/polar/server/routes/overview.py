"""Routes of what a person watches: the service at a glance, its sessions, its groups and its log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from polar.server.access.auth import Access, guarded_router
from polar.server.long_poll import poll
from polar.server.overview import group_list, live, log_lines, session_list
from polar.server.overview.snapshot import snapshot
from polar.server.routes.parameters import MAX_CURSOR, UNKNOWN, Cursor, PathId, QueryId, WaitSeconds
from polar.server.state import State
from polar.types import GroupListPage, LogPage, Overview, SessionFilter, SessionListPage
from polar.types.codec import MSGPACK

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_LIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {MSGPACK: _BINARY}},
    204: {"description": "Nothing newer"},
    **UNKNOWN,
}
Before = Annotated[int | None, Query(ge=0, le=MAX_CURSOR)]


class SessionListQuery(SessionFilter):
    before: int | None = Field(default=None, ge=0, le=MAX_CURSOR)
    """The `before` of the page that this one follows."""
    limit: int = Field(default=50, ge=1, le=1000)


class OverviewRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "overview", record=access)
        router.get("/v1/overview", summary="Show the service at a glance")(self.overview)
        router.get("/v1/overview/sessions", summary="List sessions, the newest first")(self.sessions)
        router.get("/v1/overview/groups", summary="List groups, the newest first")(self.groups)
        router.get("/v1/overview/log", summary="Read warnings and errors")(self.log)
        binary: dict[str, Any] = {"response_class": Response, "response_model": None, "responses": _LIVE}
        router.get("/v1/sessions/{session_id}/live", summary="Watch a session that runs", **binary)(self.live)
        return router

    async def overview(self) -> Overview:
        """Stages, nodes, and what the newest results amount to. `/v1/events` after its cursor says when to ask
        again."""
        return await self._state.read(snapshot, self._state.clock(), self._state.alive_since)

    async def sessions(self, wanted: Annotated[SessionListQuery, Query()]) -> SessionListPage:
        """Those for which every given filter holds. Continue with the page's `before`."""
        return await self._state.read(session_list.page, wanted, wanted.before, wanted.limit)

    async def live(
        self, request: Request, session_id: PathId, after: Cursor = 0, wait_s: WaitSeconds = 0.0
    ) -> Response:
        """Its calls so far and the ends of its logs, in the form of an upload without a result, as soon as its
        node has sent them. `Polar-Version` is what to pass as `after`. 204: nothing newer came within `wait_s`,
        or, with the header `Polar-Ended`, nothing will: read the session's upload."""
        ended = False

        async def look() -> tuple[int, bytes] | None:
            nonlocal ended
            ended = not await self._state.change(live.watch, session_id, wait_s)
            blob = await self._state.read(live.newest, session_id, after)
            content = None if blob is None else await self._state.read(live.read, session_id, blob)
            return None if blob is None or content is None else (blob.version, content)

        found = await poll(
            request, self._state.signals["live"], wait_s, look, done=lambda found: ended or found is not None
        )
        if found is None:
            return Response(status_code=204, headers={"Polar-Ended": "yes"} if ended else None)
        return Response(found[1], media_type=MSGPACK, headers={"Polar-Version": str(found[0])})

    async def log(
        self, after: Cursor = 0, session_id: QueryId = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> LogPage:
        """Of the server and its nodes: the newest lines after the cursor."""
        return await self._state.read(log_lines.page, after, session_id, limit)

    async def groups(
        self, before: Before = None, limit: Annotated[int, Query(ge=1, le=200)] = 50
    ) -> GroupListPage:
        """With the rewards so far, and whether they differ. Continue with the page's `before`."""
        return await self._state.read(group_list.page, before, limit)
