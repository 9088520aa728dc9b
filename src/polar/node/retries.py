"""Runs a session again when its attempt failed because of the node.

A failure on a sick node is not the session's fault and is not counted; on a node that looks healthy it is counted,
up to a limit. A sick node leases nothing and hands back sessions that have not started running. Those that run
continue: their harness may survive the outage.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from polar.config import NodeConfig
from polar.node.health import NodeHealth, Suspicion, suspicion_of
from polar.node.probes import descriptors_are_short
from polar.session.base import SessionSource
from polar.types import EarlierAttempt, Lease, SessionResult, Stage, Trajectory

T = TypeVar("T")

NOT_RUN = frozenset({Stage.QUEUED, Stage.INIT, Stage.READY})
SHOWN_REASON = 500


@runtime_checkable
class ReturningSource(Protocol):
    """A source of sessions that takes a session back."""

    patient: bool
    """Other nodes may run the sessions, so a sick node waits for as long as it takes."""
    stopping: asyncio.Event
    """Set when the source gives out no more sessions."""

    async def lease(self, room: int) -> list[Lease]: ...

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None: ...

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        """Instead of `report`: the session runs again, as its next attempt."""


class RequeueingSource:
    """A `ReturningSource` around a source that takes nothing back, as a task file. Returned sessions run again on
    this node; it ends when every session has its result."""

    patient = False

    def __init__(self, source: SessionSource) -> None:
        self.stopping = asyncio.Event()
        self._source = source
        self._ended = False
        self._again: deque[Lease] = deque()
        self._leased: dict[str, Lease] = {}
        self._changed = asyncio.Event()

    async def lease(self, room: int) -> list[Lease]:
        while True:
            if leases := await self._next(room):
                self._leased.update({lease.session.session_id: lease for lease in leases})
                return leases
            if not self._leased:
                return []
            self._changed.clear()
            await self._changed.wait()

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self._leased.pop(result.session_id)
        self._changed.set()
        await self._source.report(result, trajectory)

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        lease = self._leased.pop(result.session_id)
        update = {"attempt": lease.session.attempt + 1, "stage": Stage.QUEUED}
        session = lease.session.model_copy(update=update)
        self._again.append(lease.model_copy(update={"session": session, "earlier": (*lease.earlier, ended)}))
        self._changed.set()

    async def _next(self, room: int) -> list[Lease]:
        if self._again:
            return [self._again.popleft() for _ in range(min(room, len(self._again)))]
        if self._ended:
            return []
        leases = await self._source.lease(room)
        self._ended = not leases
        return leases


@dataclass
class _Attempt:
    lease: Lease
    leased_at: float = field(default_factory=time.monotonic)
    stage: Stage = Stage.QUEUED
    cancelled: bool = False
    """By us, because the node is sick."""


class RetryingSource:
    """A `SessionSource` and a `Watcher` around another source."""

    def __init__(self, source: ReturningSource, health: NodeHealth, config: NodeConfig, node_name: str) -> None:
        self._source = source
        self._health = health
        self._config = config
        self._node_name = node_name
        self._attempts: dict[str, _Attempt] = {}
        self._cancel: Callable[[str], bool] = lambda _: False
        health.watch(self._cancel_not_run)

    def attach(self, cancel: Callable[[str], bool]) -> None:
        self._cancel = cancel

    async def lease(self, room: int) -> list[Lease]:
        await self._until_well()
        leases = await self._source.lease(room)
        for lease in leases:
            self._attempts[lease.session.session_id] = _Attempt(lease)
        if self._health.sick and not self._outage_is_too_long:
            self._cancel_not_run()
        return leases

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        try:
            ended = await self._retry_reason(self._attempts[result.session_id], result)
        finally:
            self._attempts.pop(result.session_id, None)
        if ended is not None:
            await self._source.hand_back(result, ended)
            return
        if result.failure is None:
            self._health.confirm()
        await self._source.report(result, trajectory)

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        if descriptors_are_short():  # a connection that is reset for lack of one leaves no other trace
            self._health.note_shortage("descriptors")
        attempt = self._attempts.get(session_id)
        if attempt is not None and not stage.final:
            attempt.stage = stage
            if attempt.cancelled:  # leased, but not started, when the node fell sick
                self._cancel(session_id)

    def _cancel_not_run(self) -> None:
        for session_id, attempt in self._attempts.items():
            if attempt.stage in NOT_RUN and not attempt.cancelled:
                attempt.cancelled = True
                self._cancel(session_id)

    @property
    def _outage_is_too_long(self) -> bool:
        """No other node can run the sessions, and this one has been sick for too long: let them fail."""
        return not self._source.patient and self._health.sick_s >= self._config.outage_s

    async def _until_well(self) -> None:
        if self._health.sick is None:
            return
        left_s = None if self._source.patient else max(0.0, self._config.outage_s - self._health.sick_s)
        await unless(self._source.stopping, self._health.until_well(), left_s)

    async def _retry_reason(self, attempt: _Attempt, result: SessionResult) -> EarlierAttempt | None:
        """The record of this attempt if the session shall run again, else None."""
        if result.stage is Stage.CANCELLED:
            sick = self._health.sick
            if not attempt.cancelled or result.broken_off_stale:
                return None
            why = sick.why if sick else "the node was sick"
            return self._record(result, sick.part if sick else "node", why, counted=False)
        failure = result.failure
        if failure is None:
            return None
        suspicion = suspicion_of(failure, attempt.lease.task)
        if suspicion is not None:
            healthy = await self._looks_healthy(suspicion) and self._health.was_well_since(attempt.leased_at)
            if self._may_run_again(attempt.lease, suspicion, healthy=healthy):
                return self._record(result, suspicion.part, failure.message, counted=healthy)
        # Without a descriptor the gateway cannot accept a connection: it is reset, and only the harness notices.
        elif failure.where == "harness" and await self._lacked_descriptors(attempt):
            why = "the harness failed while the node had no file descriptors left"
            return self._record(result, "descriptors", why, counted=False)
        return None

    async def _lacked_descriptors(self, attempt: _Attempt) -> bool:
        suspicion = Suspicion("descriptors")
        await self._looks_healthy(suspicion)
        if self._health.was_well_since(attempt.leased_at, suspicion.part):
            return False
        return self._may_run_again(attempt.lease, suspicion, healthy=False)

    async def _looks_healthy(self, suspicion: Suspicion) -> bool:
        """False where the node stops before the probe is done: the failure must not count against the session."""
        done = await unless(self._source.stopping, self._health.examine(suspicion))
        return done is not None and done.result()

    def _may_run_again(self, lease: Lease, suspicion: Suspicion, *, healthy: bool) -> bool:
        counted = sum(attempt.counted for attempt in lease.earlier)
        if not healthy:
            return not self._outage_is_too_long and len(lease.earlier) - counted < self._config.max_hand_backs
        # A runtime that works refused this session because of its task, and would refuse it again.
        return suspicion.part != "runtime" and counted + 1 < self._config.max_failures

    def _record(self, result: SessionResult, where: str, why: str, *, counted: bool) -> EarlierAttempt:
        return EarlierAttempt(
            attempt=result.attempt, node=self._node_name, where=where, why=why[:SHOWN_REASON], counted=counted
        )


async def unless(
    event: asyncio.Event, work: Coroutine[Any, Any, T], timeout_s: float | None = None
) -> asyncio.Future[T] | None:
    """Does the work, and cancels it if the event or the timeout comes first. Returns the finished work, else None;
    raises its error."""
    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([doing, waiting], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return None
        doing.result()
        return doing
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
