"""Routes of sessions, their uploads, and results by cursor."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from polar.server.auth import Access, guarded_router
from polar.server.errors import ErrorBody
from polar.server.long_poll import poll
from polar.server.records import cancel, groups, results, sessions, uploads
from polar.server.routes.parameters import MAX_CURSOR, UNKNOWN, Limit, PathId, QueryId
from polar.server.state import State
from polar.types import CancelReply, Id, Lease, ResultPage, Selection, SessionStatus, Stage, Strict
from polar.types.codec import MSGPACK

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_UPLOAD: dict[int | str, dict[str, Any]] = {200: {"content": {MSGPACK: _BINARY}}, **UNKNOWN}
_TRAJECTORY: dict[int | str, dict[str, Any]] = {
    200: {"content": {MSGPACK: _BINARY, "application/json": {"schema": {"type": "object"}}}},
    406: {"model": ErrorBody},
    **UNKNOWN,
}


class ResultQuery(Strict):
    after: int = Field(default=0, ge=0, le=MAX_CURSOR)
    limit: int = Field(default=100, ge=1, le=10_000)
    wait_s: float = Field(default=0.0, ge=0, le=60)
    """How long to wait for the first one."""
    task_id: Id | None = None
    group_id: Id | None = None


class SessionRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "sessions")
        one = "/v1/sessions/{session_id}"
        router.get("/v1/sessions", summary="List sessions")(self.listing)
        router.get(one, summary="Show a session", responses=UNKNOWN)(self.one)
        router.get(f"{one}/lease", summary="Show a session's task", responses=UNKNOWN)(self.lease)
        router.post(f"{one}/cancel", summary="Cancel a session", responses=UNKNOWN)(self.cancel)
        binary: dict[str, Any] = {"response_class": Response, "response_model": None}
        router.get(f"{one}/upload", summary="Read calls and traces", responses=_UPLOAD, **binary)(self.upload)
        traces: dict[str, Any] = {"summary": "Read a session's traces", "responses": _TRAJECTORY, **binary}
        router.get(f"{one}/trajectory", **traces)(self.trajectory)
        router.get("/v1/results", summary="Read results in order")(self.results)
        router.post("/v1/results/query", summary="Read results of chosen tasks", responses=UNKNOWN)(self.selected)
        return router

    async def listing(
        self, task_id: QueryId = None, stage: Stage | None = None, limit: Limit = 1000
    ) -> list[SessionStatus]:
        """All, or those of a task or in a stage, the oldest first."""
        return await self._state.read(sessions.listing, task_id, stage, limit)

    async def one(self, session_id: PathId) -> SessionStatus:
        """Its stage, its node, and its result when it is done."""
        return await self._state.read(sessions.status, session_id)

    async def lease(self, session_id: PathId) -> Lease:
        """What a node gets when it leases the session: the session and its whole task."""
        return await self._state.read(sessions.lease_of, session_id)

    async def cancel(self, session_id: PathId) -> CancelReply:
        """One that runs ends at its node, with what was captured so far. One that has a result stays as it is."""
        return CancelReply(cancelled=await self._state.change(cancel.cancel, "session", session_id))

    async def upload(self, session_id: PathId) -> Response:
        """All that the session's node uploaded, as one binary blob: result, trajectory and calls."""
        return Response(await self._blob(session_id), media_type=MSGPACK)

    async def trajectory(self, session_id: PathId, accept: Annotated[str, Header()] = "*/*") -> Response:
        """Token ids, masks and logprobs, binary; as JSON if `Accept` asks for that alone."""
        blob = await self._blob(session_id)
        if "application/json" in accept and MSGPACK not in accept:
            body = await asyncio.to_thread(uploads.trajectory_json, blob, session_id)
            return Response(body, media_type="application/json")
        return Response(await asyncio.to_thread(uploads.trajectory_msgpack, blob, session_id), media_type=MSGPACK)

    async def results(self, request: Request, only: Annotated[ResultQuery, Query()]) -> ResultPage:
        """Results after a cursor, in the order in which they were recorded. A cursor can be used twice."""
        wanted = results.ResultFilter(only.task_id, only.group_id)

        async def look() -> list[tuple[int, str]]:
            return await self._state.read(results.rows_after, only.after, only.limit, wanted)

        found = await poll(request, self._state.signals["results"], only.wait_s, look, done=bool)
        return await asyncio.to_thread(results.page_of, results.ResultRows(found, all_done=False), only.after)

    async def selected(self, request: Request, wanted: Selection) -> ResultPage:
        """Results of several tasks and groups. A POST, because thousands of ids do not fit in a URL."""
        await self._state.read(groups.selected, wanted)

        async def look() -> results.ResultRows:
            return await self._state.read(results.selected, wanted)

        signal = self._state.signals["results"]
        rows = await poll(request, signal, wanted.wait_s, look, done=lambda rows: rows.ready)
        return await asyncio.to_thread(results.page_of, rows, wanted.after)

    async def _blob(self, session_id: str) -> bytes:
        return await uploads.read_blob(self._state, session_id)
