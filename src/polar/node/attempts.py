"""What becomes of an attempt that failed through its node: the session is handed back and runs again.

A failure on a node that turns out to be sick says nothing about the session, so it does not count; on a node that
looks healthy it counts, up to a bound. A sick node leases nothing, and gives back what has not begun to run; what
runs goes on, for its harness may sit the outage out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from polar.config import NodeConfig
from polar.node.checks import descriptors_are_short
from polar.node.health import NodeHealth, Suspicion, may_be_cut_off, suspicion_of
from polar.types import EarlierAttempt, Lease, SessionResult, Stage, Trajectory

T = TypeVar("T")

NOT_RUN = frozenset({Stage.QUEUED, Stage.INIT, Stage.READY})
SHOWN_REASON = 500


@runtime_checkable
class ReturningSource(Protocol):
    """A source of sessions that takes a session back."""

    patient: bool
    """Others may run the sessions: a sick node waits as long as it takes."""

    async def lease(self, room: int) -> list[Lease]: ...

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None: ...

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        """In place of `report`: the session shall run again, as its next attempt."""
        ...

    async def until_stopped(self) -> None:
        """Returns when the source gives out no more sessions."""
        ...


@dataclass
class _Leased:
    lease: Lease
    at: float = field(default_factory=time.monotonic)
    stage: Stage = Stage.QUEUED
    broken_off: bool = False
    """By us, because the node is sick."""


class Attempts:
    """A `SessionSource` and a `Watcher` around another source."""

    def __init__(self, source: ReturningSource, health: NodeHealth, config: NodeConfig, node_name: str) -> None:
        self._source = source
        self._health = health
        self._config = config
        self._node_name = node_name
        self._leased: dict[str, _Leased] = {}
        self._cancel: Callable[[str], bool] = lambda _: False
        health.watch(self._break_off)

    def attach(self, cancel: Callable[[str], bool]) -> None:
        self._cancel = cancel

    async def lease(self, room: int) -> list[Lease]:
        await self._until_fit()
        leases = await self._source.lease(room)
        for lease in leases:
            self._leased[lease.session.session_id] = _Leased(lease)
        if self._health.sick and not self._hopeless:
            self._break_off()
        return leases

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        leased = self._leased[result.session_id]
        try:
            ended = await self._ended(leased, result)
        finally:
            self._leased.pop(result.session_id, None)
        if ended is not None:
            await self._source.hand_back(result, ended)
            return
        if result.failure is None:
            self._health.confirm()
        await self._source.report(result, trajectory)

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        if descriptors_are_short():  # a connection that is reset for want of one leaves no other sign
            self._health.note_shortage("descriptors")
        leased = self._leased.get(session_id)
        if leased is not None and not stage.final:
            leased.stage = stage
            if leased.broken_off:  # it was leased, but had not begun, when the node fell sick
                self._cancel(session_id)

    def _break_off(self) -> None:
        for session_id, leased in self._leased.items():
            if leased.stage in NOT_RUN and not leased.broken_off:
                leased.broken_off = True
                self._cancel(session_id)

    @property
    def _hopeless(self) -> bool:
        """Nobody else runs the sessions, and the node has been sick for too long: they fail as they are."""
        return not self._source.patient and self._health.sick_s >= self._config.outage_s

    async def _until_fit(self) -> None:
        if self._health.sick is None:
            return
        left_s = None if self._source.patient else max(0.0, self._config.outage_s - self._health.sick_s)
        await self._unless_stopped(self._health.until_well(), left_s)

    async def _ended(self, leased: _Leased, result: SessionResult) -> EarlierAttempt | None:
        """How the attempt is remembered, if the session shall run again."""
        if result.stage is Stage.CANCELLED:
            sick = self._health.sick
            if not leased.broken_off or result.broken_off_stale:
                return None
            why = sick.why if sick else "the node was sick"
            return self._record(result, sick.part if sick else "node", why, counted=False)
        suspicion = suspicion_of(result.failure, leased.lease.task)
        if suspicion is None and may_be_cut_off(result.failure):
            return await self._cut_off(leased, result)
        if suspicion is None or result.failure is None:
            return None
        healthy = await self._looks_healthy(suspicion) and self._health.was_well_since(leased.at)
        if not self._may_run_again(leased.lease, suspicion, healthy=healthy):
            return None
        return self._record(result, suspicion.part, result.failure.message, counted=healthy)

    async def _cut_off(self, leased: _Leased, result: SessionResult) -> EarlierAttempt | None:
        lacking = Suspicion("descriptors")
        await self._looks_healthy(lacking)
        if self._health.was_well_since(leased.at, lacking.part):
            return None
        if not self._may_run_again(leased.lease, lacking, healthy=False):
            return None
        return self._record(result, lacking.part, "the harness failed while the node had none left", counted=False)

    async def _looks_healthy(self, suspicion: Suspicion) -> bool:
        """A node that stops does not wait for a probe: it is not to count against the session."""
        return bool(await self._unless_stopped(self._health.examine(suspicion)))

    async def _unless_stopped(self, work: Coroutine[None, None, T], timeout_s: float | None = None) -> T | None:
        """What the work gives; None where the source stops first, or time is up."""
        doing = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._source.until_stopped())
        try:
            await asyncio.wait([doing, stopped], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            for task in (doing, stopped):
                task.cancel()
            await asyncio.gather(doing, stopped, return_exceptions=True)

    def _may_run_again(self, lease: Lease, suspicion: Suspicion, *, healthy: bool) -> bool:
        counted = sum(attempt.counted for attempt in lease.earlier)
        if not healthy:
            return not self._hopeless and len(lease.earlier) - counted < self._config.max_hand_backs
        # A runtime that works refused this session for a reason of the task's, which it would refuse again.
        return suspicion.part != "runtime" and counted + 1 < self._config.max_failures

    def _record(self, result: SessionResult, where: str, why: str, *, counted: bool) -> EarlierAttempt:
        return EarlierAttempt(
            attempt=result.attempt, node=self._node_name, where=where, why=why[:SHOWN_REASON], counted=counted
        )
