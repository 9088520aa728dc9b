"""Events as they happen (server-sent events), the policy that every node follows, and how far a pause has come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from polar.server.auth import Door, guarded_router
from polar.server.records import events, policy
from polar.server.routes.parameters import MAX_CURSOR, Cursor, WaitSeconds
from polar.server.state import State
from polar.server.waiting import poll, rings_within
from polar.types import Drain, Event, Policy, PolicyChange

STILL_HERE_S = 15.0
"""A comment goes out so often, so that neither end nor a proxy takes the silence for the end."""
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
LastEventId = Annotated[int | None, Header(ge=0, le=MAX_CURSOR)]


class EventRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, door: Door) -> APIRouter:
        router = guarded_router(door.control, "events")
        streaming: dict[str, Any] = {"response_class": StreamingResponse, "response_model": None}
        router.get("/v1/events", responses=_STREAM, **streaming)(self.stream)
        router.get("/v1/policy")(self.policy)
        router.put("/v1/policy")(self.put_policy)
        router.get("/v1/policy/drain")(self.drain)
        return router

    async def stream(self, after: Cursor = 0, last_event_id: LastEventId = None) -> StreamingResponse:
        """`Last-Event-ID` wins: a browser that connects again repeats the address it began with."""
        start = after if last_event_id is None else last_event_id
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._from(start), media_type="text/event-stream", headers=headers)

    async def policy(self) -> Policy:
        return await self._state.read(policy.current)

    async def put_policy(self, wanted: PolicyChange) -> Policy:
        """What is left out stays as it is. The counts are the server's own."""
        return await self._state.change(policy.put, wanted)

    async def drain(self, request: Request, wait_s: WaitSeconds = 0.0) -> Drain:
        """How far a pause has come. Waits up to `wait_s` until nothing is generated any more, or not paused."""
        last: list[Drain] = []

        async def look() -> bool:
            last[:] = [await self._state.read(policy.drain, self._state.alive_since)]
            return last[0].done or not last[0].policy.paused

        await poll(request, self._state.bells["policy"], wait_s, look)
        return last[0]

    async def _from(self, cursor: int) -> AsyncGenerator[str]:
        bell = self._state.bells["events"]
        yield ": events of the rollout server\n\n"
        while not bell.silenced:
            rung, since = bell.listen(), cursor
            for event in await self._state.read(events.after, since):
                cursor = event.cursor
                yield _frame(event)
            if cursor == since and not await rings_within(rung, STILL_HERE_S):
                yield ": still here\n\n"


def _frame(event: Event) -> str:
    return f"id: {event.cursor}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
