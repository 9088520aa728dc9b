"""Routes of tasks: submit, status, cancel."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from polar.server.auth import Access, guarded_router
from polar.server.records import cancel, tasks
from polar.server.routes.parameters import CONFLICT, UNKNOWN, Limit, PathId
from polar.server.state import State
from polar.server.task_checks import refuse_if_wrong
from polar.types import CancelReply, TaskRequest, TaskStatus


class TaskRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "tasks")
        router.post("/v1/tasks", status_code=201, responses=CONFLICT)(self.submit)
        router.get("/v1/tasks")(self.newest)
        router.get("/v1/tasks/{task_id}", responses=UNKNOWN)(self.one)
        router.post("/v1/tasks/{task_id}/cancel", responses=UNKNOWN)(self.cancel_task)
        return router

    async def submit(self, task: TaskRequest) -> TaskStatus:
        named = tasks.named(task)
        await asyncio.to_thread(refuse_if_wrong, named)
        return await self._state.change(tasks.submit, named)

    async def newest(self, limit: Limit = 100) -> list[TaskStatus]:
        return await self._state.read(tasks.newest, limit)

    async def one(self, task_id: PathId) -> TaskStatus:
        return await self._state.read(tasks.status, task_id)

    async def cancel_task(self, task_id: PathId) -> CancelReply:
        return CancelReply(cancelled=await self._state.change(cancel.cancel, "task", task_id))
