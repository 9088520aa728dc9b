"""Routes of the curves that trainers report."""

from __future__ import annotations

from fastapi import APIRouter

from polar.server.access.auth import Access, guarded_router
from polar.server.records import training
from polar.server.routes.parameters import UNKNOWN, Cursor, Limit, PathId
from polar.server.state import State
from polar.types import TrainingPage, TrainingReport, TrainingRun


class TrainingRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def router(self, access: Access) -> APIRouter:
        router = guarded_router(access.control, "training")
        router.get("/v1/training", summary="List training runs")(self.listing)
        router.get("/v1/training/{run_id}", summary="Read a trainer's curves", responses=UNKNOWN)(self.points)
        router.post("/v1/training/{run_id}/points", summary="Add to a trainer's curves")(self.report)
        return router

    async def listing(self, limit: Limit = 100) -> list[TrainingRun]:
        """The last updated first."""
        return await self._state.read(training.listing, limit)

    async def points(self, run_id: PathId, after: Cursor = 0, limit: Limit = 1000) -> TrainingPage:
        """The points after the cursor, in the order in which they were last written."""
        return await self._state.read(training.page, run_id, after, limit)

    async def report(self, run_id: PathId, given: TrainingReport) -> TrainingRun:
        """One point for each phase and step: a repetition changes nothing, others replace the older."""
        return await self._state.change(training.report, run_id, given)
