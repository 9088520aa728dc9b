"""Routes of sessions, their uploads, and results by cursor."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from sqlalchemy import Connection

from polar.server.access.auth import Access, guarded_router
from polar.server.errors import ErrorBody
from polar.server.long_poll import poll
from polar.server.records import cancel, groups, nodes, results, sessions, uploads
from polar.server.retention import fetched, gaps
from polar.server.routes.parameters import MAX_CURSOR, UNKNOWN, Limit, PathId, QueryId
from polar.server.scheduling.waiting import why_task_waits
from polar.server.state import State
from polar.types import CancelReply, Id, Lease, ResultPage, Selection, SessionStatus, Stage, Strict
from polar.types.codec import MSGPACK
from polar.types.packed import PACKED

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_REMOVED: dict[int | str, dict[str, Any]] = {**UNKNOWN, 410: {"model": ErrorBody}}
_UPLOAD: dict[int | str, dict[str, Any]] = {200: {"content": {MSGPACK: _BINARY, PACKED: _BINARY}}, **_REMOVED}
_TRAJECTORY: dict[int | str, dict[str, Any]] = {
    200: {"content": {MSGPACK: _BINARY, PACKED: _BINARY, "application/json": {"schema": {"type": "object"}}}},
    406: {"model": ErrorBody},
    **_REMOVED,
}


Accepted = Annotated[str, Header(alias="accept")]


class ResultQuery(Strict):
    after: int = Field(default=0, ge=0, le=MAX_CURSOR)
    limit: int = Field(default=100, ge=1, le=10_000)
    wait_s: float = Field(default=0.0, ge=0, le=60)
    """How long to wait for the first one."""
    allow_gap: bool = False
    """Read on where retention has removed results that this client has not read; else that is an error."""
    task_id: Id | None = None
    group_id: Id | None = None


class SessionRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "sessions", record=access)
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
        """Its stage, its node or why it waits for one, and its result when it is done."""
        status = await self._state.read(_status, session_id, self._state.alive_since)
        if status.result is not None:
            self._state.defer(fetched.mark_sessions, [session_id])
        return status

    async def lease(self, session_id: PathId) -> Lease:
        """What a node gets when it leases the session: the session and its whole task."""
        return await self._state.read(sessions.lease_of, session_id)

    async def cancel(self, session_id: PathId) -> CancelReply:
        """One that runs ends at its node, with what was captured so far. One that has a result stays as it is."""
        return CancelReply(cancelled=await self._state.change(cancel.cancel, "session", session_id))

    async def upload(self, session_id: PathId, accept: Accepted = "*/*") -> Response:
        """All that the session's node uploaded, as one binary blob: result, trajectory and calls. Compressed as it
        is stored, with shared prefixes once, if `Accept` names that type."""
        blob = await self._blob(session_id)
        if PACKED in accept:
            return Response(await asyncio.to_thread(uploads.upload_packed, blob), media_type=PACKED)
        return Response(await asyncio.to_thread(uploads.upload_msgpack, blob), media_type=MSGPACK)

    async def trajectory(self, session_id: PathId, accept: Accepted = "*/*") -> Response:
        """Token ids, masks and logprobs, binary; as JSON if `Accept` asks for that alone. Compressed, with shared
        prefixes once, if `Accept` names that type."""
        blob = await self._blob(session_id)
        if PACKED in accept:
            body = await asyncio.to_thread(uploads.trajectory_packed, blob, session_id)
            return Response(body, media_type=PACKED)
        if "application/json" in accept and MSGPACK not in accept:
            body = await asyncio.to_thread(uploads.trajectory_json, blob, session_id)
            return Response(body, media_type="application/json")
        return Response(await asyncio.to_thread(uploads.trajectory_msgpack, blob, session_id), media_type=MSGPACK)

    async def results(self, request: Request, only: Annotated[ResultQuery, Query()]) -> ResultPage:
        """Results after a cursor, in the order in which they were recorded. A cursor can be used twice."""
        wanted = results.ResultFilter(only.task_id, only.group_id)
        await self._state.read(_check_gap, only)

        async def look() -> list[tuple[int, str]]:
            return await self._state.read(results.rows_after, only.after, only.limit, wanted)

        found = await poll(request, self._state.signals["results"], only.wait_s, look, done=bool)
        await self._state.read(_check_gap, only)  # again: retention may have removed some before the last look
        return await self._page(results.ResultRows(found, all_done=False), only.after)

    async def selected(self, request: Request, wanted: Selection) -> ResultPage:
        """Results of several tasks and groups. A POST, because thousands of ids do not fit in a URL."""
        await self._state.read(_check_selection, wanted)

        async def look() -> results.ResultRows:
            return await self._state.read(results.selected, wanted)

        signal = self._state.signals["results"]
        rows = await poll(request, signal, wanted.wait_s, look, done=lambda rows: rows.ready)
        await self._state.read(_check_selection, wanted)  # again, as above
        return await self._page(rows, wanted.after)

    async def _page(self, rows: results.ResultRows, after: int) -> ResultPage:
        if rows.found:
            self._state.defer(fetched.mark_results, [cursor for cursor, _ in rows.found])
        return await asyncio.to_thread(results.page_of, rows, after)

    async def _blob(self, session_id: str) -> bytes:
        blob = await uploads.read_blob(self._state, session_id)
        self._state.defer(fetched.mark_sessions, [session_id])
        return blob


def _status(connection: Connection, session_id: str, alive_since: float) -> SessionStatus:
    found = sessions.status(connection, session_id)
    if found.stage is not Stage.QUEUED or found.node_id is not None:
        return found
    why = why_task_waits(connection, found.task_id, nodes.listing(connection, alive_since))
    return found.model_copy(update={"waits": why})


def _check_gap(connection: Connection, only: ResultQuery) -> None:
    """A group is removed whole: one that the server has, has no gap."""
    named: tuple[tuple[gaps.Kind, str | None], ...] = (("task", only.task_id), ("group", only.group_id))
    for kind, name in named:
        if name is not None and gaps.is_removed(connection, kind, name):
            gaps.check_names(connection, kind, [name], only.after, allow_gap=only.allow_gap)
    if only.task_id is None and only.group_id is None:
        gaps.check_cursor(connection, only.after, allow_gap=only.allow_gap)


def _check_selection(connection: Connection, wanted: Selection) -> None:
    if wanted.everything:
        gaps.check_cursor(connection, wanted.after, allow_gap=wanted.allow_gap)
    groups.selected(connection, wanted)
