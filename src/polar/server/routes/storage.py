"""Routes of what the server stores: how much it is, and removal on demand."""

from __future__ import annotations

from fastapi import APIRouter

from polar.server.access.actions import UNDER_WAY
from polar.server.access.auth import Access, guarded_router
from polar.server.retention import on_demand
from polar.server.state import State
from polar.types import GcReport, GcRequest, StorageStatus


class StorageRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "storage", record=access)
        router.get("/v1/storage", summary="Show what is stored")(self.status)
        router.post("/v1/storage/gc", summary="Remove what is old")(self.collect)
        return router

    async def status(self) -> StorageStatus:
        """How many uploads the server has and where, its rules of retention, and what they have removed so far."""
        return await self._state.read(on_demand.status, self._state)

    async def collect(self, wanted: GcRequest) -> GcReport:
        """By the server's rules of retention, or by those in the request. Open groups and results that no client
        has stay. Counts only, unless `dry_run` is false."""
        action = UNDER_WAY.get()
        before = UNDER_WAY.set(None)  # one record for all batches
        try:
            report = await on_demand.collect(self._state, wanted)
        finally:
            UNDER_WAY.reset(before)
        if action is not None and not wanted.dry_run:
            await self._state.record(action.about(**report.model_dump(mode="json")))
        return report
