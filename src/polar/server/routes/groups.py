"""Routes of groups: status, cancel, and whole groups as they are done."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from sqlalchemy import Connection

from polar.server.access.auth import Access, guarded_router
from polar.server.long_poll import poll
from polar.server.records import cancel, groups
from polar.server.retention import fetched, gaps
from polar.server.routes.parameters import UNKNOWN, PathId
from polar.server.state import State
from polar.types import CancelReply, GroupPage, GroupStatus, Selection


class GroupRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "groups", record=access)
        router.post("/v1/groups/query", summary="Read whole groups", responses=UNKNOWN)(self.done)
        router.get("/v1/groups/{group_id}", summary="Show a group", responses=UNKNOWN)(self.one)
        router.post("/v1/groups/{group_id}/cancel", summary="Cancel a group", responses=UNKNOWN)(self.cancel)
        return router

    async def one(self, group_id: PathId) -> GroupStatus:
        """Its tasks, its sessions and how many have no result yet; its cursor when it is done."""
        return await self._state.read(groups.status, group_id)

    async def cancel(self, group_id: PathId) -> CancelReply:
        """Every session without a result, of all tasks of the group."""
        return CancelReply(cancelled=await self._state.change(cancel.cancel, "group", group_id))

    async def done(self, request: Request, wanted: Selection) -> GroupPage:
        """Groups of which every session has its result, in the order in which they were done, with their results.
        A POST, because thousands of ids do not fit in a URL. Retention keeps the traces of these groups until they
        are read, or until a client asks for the groups that come after."""
        selected = await self._state.read(_selected, wanted)
        if wanted.after:
            self._state.defer(fetched.mark_groups_before, wanted.after, wanted.limit, selected)

        async def look() -> groups.GroupRows:
            return await self._state.read(groups.done_after, wanted.after, wanted.limit, selected)

        signal = self._state.signals["groups"]
        rows = await poll(request, signal, wanted.wait_s, look, done=lambda rows: rows.ready)
        await self._state.read(_selected, wanted)  # again: retention may have removed some before the last look
        if rows.found:
            sent = [group_id for group_id, _, _ in rows.found]
            self._state.defer(fetched.mark_groups, sent, rows.found[-1][1])
        return await asyncio.to_thread(groups.page_of, rows, wanted.after)


def _selected(connection: Connection, wanted: Selection) -> list[str] | None:
    """None: all of them."""
    if not wanted.everything:
        return groups.selected(connection, wanted)
    gaps.check_cursor(connection, wanted.after, allow_gap=wanted.allow_gap)
    return None
