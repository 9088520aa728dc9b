"""The pipeline: takes sessions through INIT, READY, RUNNING and POSTRUN, each stage with its own workers.

A slow set-up never takes a run slot, and slow verdicts only when `pools.waiting` sessions wait for them already.
A session takes its place in the READY buffer when it is leased and keeps it until it runs, so a finished set-up
waits without a worker, and no more sessions are leased than can be set up ahead. This is the one place that
catches broadly: a failed session is data, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace

from polar.config import PoolConfig
from polar.errors import PolarError, SessionError, failure_of, shortage_of
from polar.session.base import SessionSource
from polar.session.clock import RunClock, paused
from polar.session.files.keep import close_files, hide_key, keep_artifacts, keep_harness_logs
from polar.session.files.patch import keep_patch
from polar.session.health import examine_health
from polar.session.init import init
from polar.session.live import LiveSession, Services
from polar.session.own_runtime import EvaluatorSetup, EvaluatorSite, is_contained
from polar.session.postrun import (
    bare_result,
    blame,
    build,
    final_stage,
    has_failed,
    judge,
    result_of,
    traces_of,
    write,
)
from polar.session.run import run, silence
from polar.session.staleness import note_age, stale_failure, too_old
from polar.session.warm import WarmRuntimes
from polar.types import Failure, Lease, Stage

LOGGER = logging.getLogger("polar.session")


class _ReadyPlace:
    """A place in the READY buffer, given back once."""

    def __init__(self, buffer: asyncio.Semaphore) -> None:
        self._buffer = buffer
        self._left = False

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._buffer.release()


class Pipeline:
    def __init__(self, pools: PoolConfig, services: Services, source: SessionSource) -> None:
        self._init = asyncio.Semaphore(pools.init)
        self._warm = WarmRuntimes(pools.warm, services.paths.warm, self._init)
        self._services = replace(services, warm=self._warm)
        self._source = source
        self._ready = asyncio.Semaphore(pools.ready)
        self._running = asyncio.Semaphore(pools.running)
        self._postrun = asyncio.Semaphore(pools.postrun)
        self._ran = asyncio.Semaphore(pools.postrun + pools.waiting)
        """Sessions that have run and wait for POSTRUN or are in it, with their runtimes."""
        self._evaluator = asyncio.Semaphore(pools.evaluator)
        self._prewarms = pools.prewarm
        self._stages_of: dict[str, asyncio.Task[None]] = {}
        """What a cancel ends."""
        self._live: dict[str, LiveSession] = {}
        """Sessions in their stages, which may still become stale."""
        self._sessions: set[asyncio.Task[None]] = set()
        """Each waits for its stages and then finishes, cancelled or not."""
        self._unreported: list[Exception] = []

    async def serve(self) -> None:
        """Runs sessions until the source has no more. If cancelled, cancels them and waits for their reports."""
        try:
            await self._lease_all()
            await self._all_done()
        finally:
            for stages in self._stages_of.values():
                stages.cancel()
            await to_the_end(self._all_done())
            await to_the_end(self._warm.close())
        if self._unreported:
            raise ExceptionGroup("results that could not be reported", self._unreported)

    def cancel(self, session_id: str, why: str = "") -> bool:
        """Ends a session early; its result says CANCELLED and why. False: it is not in its stages any more."""
        stages, live = self._stages_of.get(session_id), self._live.get(session_id)
        if live is not None:
            live.cancel_reason = why
        return stages is not None and stages.cancel()

    def policy_changed(self) -> None:
        """Ends the sessions that are stale now; each result says why."""
        for live in [live for live in self._live.values() if too_old(live)]:
            del self._live[live.session_id]
            # Replaces any earlier failure: this is what ends the session, and the agent did not cause it.
            live.failure = stale_failure(live)
            self.cancel(live.session_id)

    async def _all_done(self) -> None:
        while self._sessions:
            await asyncio.wait(list(self._sessions))

    async def _lease_all(self) -> None:
        while True:
            room = await self._room()
            leases: list[Lease] = []
            self._warm.idle.set()
            try:
                leases = await self._source.lease(room)
            finally:
                self._warm.idle.clear()
                for _ in range(room - len(leases)):
                    self._ready.release()
            if not leases:
                return
            for lease in leases:
                self._start(lease)

    async def _room(self) -> int:
        """Takes every free place in the READY buffer, waiting for at least one."""
        await self._ready.acquire()
        room = 1
        while not self._ready.locked():
            await self._ready.acquire()
            room += 1
        return room

    def _start(self, lease: Lease) -> None:
        live = LiveSession(lease, self._services)
        place = _ReadyPlace(self._ready)
        stages = asyncio.create_task(self._stages(live, place), name=f"stages of {live.session_id}")
        self._stages_of[live.session_id] = stages
        session = asyncio.create_task(self._session(live, place, stages), name=f"session {live.session_id}")
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    async def _session(self, live: LiveSession, place: _ReadyPlace, stages: asyncio.Task[None]) -> None:
        await asyncio.wait([stages])
        del self._stages_of[live.session_id]
        place.leave()
        if not stages.cancelled() and (error := stages.exception()) is not None:
            self._fail(live, "pipeline", error)
        await self._finish(live, cancelled=stages.cancelled())

    async def _stages(self, live: LiveSession, place: _ReadyPlace) -> None:
        self._live[live.session_id] = live
        try:
            async with self._init:
                if not await self._run_init(live):
                    return
            live.advance(Stage.READY)
            async with AsyncExitStack() as after_run:
                async with self._running:
                    place.leave()
                    self._set_up_evaluator(live)
                    await self._run_harness(live)
                    # In the run slot: with slow verdicts, the next session waits instead of one more runtime.
                    await after_run.enter_async_context(self._ran)
                if has_failed(live):  # it is not judged
                    await self._try(live, "teardown", _end_evaluator(live))
                async with self._postrun:
                    await self._run_postrun(live)
        except SystemExit as error:  # from a runtime that is a plug-in; must not end the node
            raise SessionError(failure_of("runtime", error)) from error
        finally:
            self._live.pop(live.session_id, None)
            note_age(live)

    async def _run_init(self, live: LiveSession) -> bool:
        live.advance(Stage.INIT)
        budget_s = live.task.budgets.init_s
        if await self._attempt(live, "init", init(live), asyncio.timeout(budget_s)):
            live.timed_out = True
            message = f"not set up within {budget_s:g} s (budgets.init_s); under way: {live.init_part}"
            live.fail(Failure(where="init", type="TimedOut", message=message))
        return live.failure is None

    def _set_up_evaluator(self, live: LiveSession) -> None:
        """An agent that can reach the node's files never works beside the evaluator's runtime."""
        services = self._services
        site = EvaluatorSite(live.session_id, live.task, live.paths, services.launcher, services.permits)
        live.evaluator_setup = EvaluatorSetup(site, self._evaluator)
        live.teardown.push_async_callback(live.evaluator_setup.end)
        if self._prewarms and is_contained(live.task.runtime):
            live.evaluator_setup.begin()

    async def _run_harness(self, live: LiveSession) -> None:
        live.advance(Stage.RUNNING)
        with RunClock(live.task.budgets, lambda: self._services.slots.waits(live.session_id)) as clock:
            live.timed_out = await self._attempt(live, "run", run(live), clock.deadline)
        live.learn(spent=clock.spent if live.timed_out else "", waits=clock.waits)
        # Still in the run slot: the next harness starts when no process of this session is left. If this fails, a
        # process may still change the workspace, so the session is not judged.
        async with asyncio.timeout(live.task.budgets.postrun_s):
            await silence(live)

    async def _run_postrun(self, live: LiveSession) -> None:
        live.advance(Stage.POSTRUN)
        await self._keep(live)
        budget_s = live.task.budgets.postrun_s
        deadline = asyncio.timeout(budget_s)
        if await self._attempt(live, "postrun", _build_and_judge(live, deadline), deadline):
            live.fail(Failure(where="postrun", type="TimedOut", message=f"no verdict within {budget_s:g} s"))

    async def _keep(self, live: LiveSession) -> None:
        """A file that cannot be kept is listed on the result and does not fail the session."""
        budget_s = live.task.budgets.postrun_s
        deadline = asyncio.get_running_loop().time() + budget_s
        steps = (("artifacts", keep_artifacts), ("harness logs", keep_harness_logs), ("patch.diff", keep_patch))
        for what, step in steps:
            try:
                async with asyncio.timeout_at(deadline):
                    await step(live)
            except TimeoutError:
                live.left_out.append(f"{what}: not kept within {budget_s:g} s")
            except Exception as error:
                live.left_out.append(f"{what}: {failure_of('keep', error).message}")
        if live.baseline:  # git ran in the runtime and may have left processes
            async with asyncio.timeout(budget_s):
                await silence(live)

    async def _attempt(
        self, live: LiveSession, where: str, work: Awaitable[None], deadline: asyncio.Timeout
    ) -> bool:
        """Does the work of a stage and keeps its failure. True: the stage's deadline ended it."""
        try:
            async with deadline:
                await work
        except TimeoutError as error:
            if deadline.expired():
                return True
            self._fail(live, where, error)
        except (Exception, SystemExit) as error:
            self._fail(live, where, error)
        return False

    async def _try(self, live: LiveSession, where: str, step: Awaitable[None]) -> None:
        """A step at the end of a session, within `budgets.postrun_s`."""
        budget_s = live.task.budgets.postrun_s
        if await self._attempt(live, where, step, asyncio.timeout(budget_s)):
            live.fail(Failure(where=where, type="TimedOut", message=f"not done within {budget_s:g} s"))

    def _fail(self, live: LiveSession, where: str, error: BaseException) -> None:
        """Keeps the failure. An unexpected error is also logged, once, with its traceback."""
        failure = error.failure if isinstance(error, SessionError) else failure_of(where, error)
        cause = (error.__cause__ or error) if isinstance(error, SessionError) else error
        expected = isinstance(cause, PolarError | SessionError | TimeoutError) or shortage_of(cause)
        if not expected:
            extra = {"session_id": live.session_id}
            LOGGER.error("session %s: %s failed", live.session_id, failure.where, exc_info=cause, extra=extra)
        live.fail(failure)

    async def _finish(self, live: LiveSession, *, cancelled: bool) -> None:
        """Whatever happened before: builds missing traces, tears down, writes the traces, and reports the
        result."""
        ends = (
            ("teardown", silence),
            ("builder", _build_if_missing),
            ("health", examine_health),
            ("teardown", _end_evaluator),  # apart, because a runtime that does not stop uses up a deadline
            ("teardown", _tear_down),
            ("store", hide_key),
            ("store", close_files),
            ("store", write),
        )
        for where, step in ends:
            await self._try(live, where, step(live))
        live.services.policy.forget(live.session_id)
        live.advance(Stage.CANCELLED if cancelled else final_stage(live))
        await self._report(live)

    async def _report(self, live: LiveSession) -> None:
        """A session whose result cannot be made is reported as failed for that reason."""
        extra = {"session_id": live.session_id}
        try:
            result, trajectory = result_of(live), await traces_of(live)
        except Exception as error:
            LOGGER.exception("session %s: its result cannot be made", live.session_id, extra=extra)
            result, trajectory = bare_result(live, failure_of("result", error)), None
        try:
            await self._source.report(result, trajectory)
        except Exception as error:
            LOGGER.exception("session %s: its result cannot be reported", live.session_id, extra=extra)
            self._unreported.append(error)


async def _build_and_judge(live: LiveSession, deadline: asyncio.Timeout) -> None:
    await build(live)
    blame(live)
    if live.failure is None and live.evaluator_setup is not None:
        with paused(deadline):  # its own budgets limit it
            await live.evaluator_setup.ready()
    await judge(live)


async def _end_evaluator(live: LiveSession) -> None:
    if live.evaluator_setup is not None:
        await live.evaluator_setup.end()


async def _build_if_missing(live: LiveSession) -> None:
    if live.trajectory is None and live.slot is not None:
        await build(live)


async def _tear_down(live: LiveSession) -> None:
    await live.teardown.aclose()


async def to_the_end(work: Coroutine[None, None, None]) -> bool:
    """Finishes `work` even if the caller is cancelled meanwhile. True: it was."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled
