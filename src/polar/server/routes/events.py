"""Routes of the event stream (server-sent events), the policy, and the progress of a pause."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from polar.server.access.auth import Access, guarded_router
from polar.server.long_poll import fires_within, poll
from polar.server.records import events, policy
from polar.server.routes.parameters import MAX_CURSOR, Cursor, WaitSeconds
from polar.server.state import State
from polar.types import Drain, Event, Policy, PolicyChange

HEARTBEAT_S = 15.0
"""Comment interval on a silent stream, so that neither client nor proxy closes it."""
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
LastEventId = Annotated[int | None, Header(ge=0, le=MAX_CURSOR)]


class EventRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "events", record=access)
        streaming: dict[str, Any] = {"response_class": StreamingResponse, "response_model": None}
        router.get("/v1/events", summary="Follow every change", responses=_STREAM, **streaming)(self.stream)
        router.get("/v1/policy", summary="Show the policy")(self.policy)
        router.put("/v1/policy", summary="Change the policy, pause or resume")(self.put_policy)
        router.get("/v1/policy/drain", summary="Wait for a pause")(self.drain)
        return router

    async def stream(self, after: Cursor = 0, last_event_id: LastEventId = None) -> StreamingResponse:
        """Server-sent events after the cursor, without an end. `Last-Event-ID` wins over `after`: a browser
        reconnects to the URL it started with."""
        start = after if last_event_id is None else last_event_id
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._from(start), media_type="text/event-stream", headers=headers)

    async def policy(self) -> Policy:
        """The version under which calls are sampled, and whether generation is paused, for every node."""
        return await self._state.read(policy.current)

    async def put_policy(self, wanted: PolicyChange) -> Policy:
        """Fields left out stay as they are. The server counts updates and revisions."""
        return await self._state.change(policy.put, wanted)

    async def drain(self, request: Request, wait_s: WaitSeconds = 0.0) -> Drain:
        """The progress of a pause. Waits up to `wait_s` until all generations or the pause have ended."""

        async def look() -> Drain:
            return await self._state.read(policy.drain, self._state.alive_since)

        signal = self._state.signals["policy"]
        return await poll(request, signal, wait_s, look, done=lambda drain: drain.done or not drain.policy.paused)

    async def _from(self, cursor: int) -> AsyncGenerator[str]:
        signal = self._state.signals["events"]
        yield ": events of the rollout server\n\n"
        while not signal.closed:
            fired, since = signal.listen(), cursor
            for event in await self._state.read(events.page_after, since, self._state.clock()):
                cursor = event.cursor
                yield _frame(event)
            if cursor == since and not await fires_within(fired, HEARTBEAT_S):
                yield ": still here\n\n"


def _frame(event: Event) -> str:
    return f"id: {event.cursor}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
