"""Routes of tasks: submit, status, cancel."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from sqlalchemy import Connection

from polar.server.access.auth import Access, guarded_router
from polar.server.callbacks.targets import CallbackTargets, RefusedTarget
from polar.server.errors import Invalid
from polar.server.records import cancel, nodes, results, tasks
from polar.server.routes.parameters import CONFLICT, UNKNOWN, Limit, PathId
from polar.server.scheduling.waiting import why_task_waits
from polar.server.state import Change, State
from polar.server.task_checks import refuse_if_wrong
from polar.types import CancelReply, TaskRequest, TaskStatus


class TaskRoutes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._targets = CallbackTargets(state.config)

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "tasks", record=access)
        router.post("/v1/tasks", summary="Submit a task", status_code=201, responses=CONFLICT)(self.submit)
        router.get("/v1/tasks", summary="List the newest tasks")(self.newest)
        router.get("/v1/tasks/{task_id}", summary="Show a task", responses=UNKNOWN)(self.one)
        cancelling = router.post("/v1/tasks/{task_id}/cancel", summary="Cancel a task", responses=UNKNOWN)
        cancelling(self.cancel_task)
        return router

    async def submit(self, task: TaskRequest) -> TaskStatus:
        """Its sessions wait for nodes at once. A task without an id gets one; an id that exists is refused, and so
        is a task whose plug-ins or options are not known, that names a module which the operator has not allowed,
        or whose callback may not go to its address."""
        named = tasks.named(task)
        await asyncio.to_thread(refuse_if_wrong, named, self._state.config.allowed_modules)
        self._refuse_target(named)
        return await self._state.change(_submit, named, self._state.alive_since)

    def _refuse_target(self, task: TaskRequest) -> None:
        try:
            self._targets.check_literal(task.callback_url or "")
        except RefusedTarget as refusal:
            raise Invalid(f"callback_url: {refusal}") from refusal

    async def newest(self, limit: Limit = 100) -> list[TaskStatus]:
        """The last submitted first, each with how many of its sessions are in which stage."""
        return await self._state.read(tasks.newest, limit)

    async def one(self, task_id: PathId) -> TaskStatus:
        """How many of its sessions are in which stage, why the next one waits, and whether all have their
        result."""
        return await self._state.read(_status, task_id, self._state.alive_since)

    async def cancel_task(self, task_id: PathId) -> CancelReply:
        """Every session without a result. One that runs ends at its node, with what was captured so far."""
        return CancelReply(cancelled=await self._state.change(cancel.cancel, "task", task_id))


def _submit(change: Change, task: TaskRequest, alive_since: float) -> TaskStatus:
    tasks.submit(change, task)
    results.stop_if_enough(change, task.group)
    return _status(change.connection, str(task.task_id), alive_since)


def _status(connection: Connection, task_id: str, alive_since: float) -> TaskStatus:
    why = why_task_waits(connection, task_id, nodes.listing(connection, alive_since))
    return tasks.status(connection, task_id).model_copy(update={"waits": why})
