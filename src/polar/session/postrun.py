"""POSTRUN: calls become traces, the workspace is judged, the result is written.

Whatever went wrong before, the calls that were captured become traces: a time-out has a budget of its own here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from polar import registry
from polar.builders.base import Builder
from polar.builders.certificate import examine
from polar.builders.labels import check_rewards, counted, labelled
from polar.errors import SessionError, boundary
from polar.evaluators.base import Evaluator, Evidence, score_of
from polar.session.keep import told
from polar.session.live import LiveSession
from polar.session.patch import PATCH
from polar.session.plugins import call, call_foreign, expect, runtime_for
from polar.session.staleness import is_stale
from polar.store.seal import sealed
from polar.store.trajectories import write_trajectory
from polar.types import (
    Call,
    Certificate,
    Failure,
    Finding,
    SessionResult,
    Spec,
    Stage,
    Trajectory,
    TrajectoryStatistics,
)


async def build(live: LiveSession) -> None:
    with boundary("builder"):
        calls = await live.services.slots.calls(live.session_id)
        live.reached_model = bool(calls)
        built = await call("builder", _built, live.task.builder, live.session_id, calls)
        live.trajectory, live.certificate, findings = built
    if findings:
        raise SessionError(_not_exact(findings))


def _built(
    spec: Spec, session_id: str, calls: Sequence[Call]
) -> tuple[Trajectory, Certificate, Sequence[Finding]]:
    builder: Builder = registry.make("builder", spec)
    trajectory = expect(Trajectory, builder.build(session_id, calls), f"builder {spec.name!r}")
    TrajectoryStatistics.model_validate(trajectory.statistics)
    return trajectory, *examine(calls, trajectory)


def _not_exact(findings: Sequence[Finding]) -> Failure:
    """The traces are kept, for whoever looks into it; the failure keeps them out of training."""
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return Failure(where="builder", type="NotExact", message=f"{findings[0]}{more}")


async def judge(live: LiveSession) -> None:
    assert live.runtime is not None and live.trajectory is not None, "the traces come before the verdict"
    spec = live.task.evaluator
    evidence = Evidence(
        task=live.task,
        runtime=runtime_for("evaluator", spec, live.runtime),
        trajectory=live.trajectory,
        exit_code=live.exit_code,
        timed_out=live.timed_out,
        patch=live.paths.patch if PATCH in live.kept else None,
    )
    with boundary("evaluator"):
        score = score_of(await call_foreign("evaluator", spec, _evaluated, spec, evidence), spec.name)
        check_rewards(score, live.trajectory)
        live.score = score


def _evaluated(spec: Spec, evidence: Evidence) -> Any:
    evaluator: Evaluator = registry.make("evaluator", spec)
    return evaluator.evaluate(evidence)


async def write(live: LiveSession) -> None:
    """Comes after every other step that can fail: traces in the file have the reward that the result has."""
    trajectory = await traces_of(live)
    if trajectory is not None:
        with boundary("store"):
            await asyncio.to_thread(write_trajectory, live.paths.traces, trajectory)
        live.traces_written = True


async def traces_of(live: LiveSession) -> Trajectory | None:
    """As they are written and reported, with the labels and rewards of how the session ended. In a thread, because
    each trace is checked again."""
    if live.trajectory is None:
        return None
    return await asyncio.to_thread(labelled, live.trajectory, live.lease, live.score, live.failure)


def result_of(live: LiveSession) -> SessionResult:
    """Sealed: nothing changes it after this."""
    trajectory = live.trajectory
    harness = {"harness": live.harness_version} if live.harness_version else {}
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics if trajectory else {})
    result = SessionResult(
        session_id=live.session_id,
        task_id=live.session.task_id,
        group_id=live.task.group or live.session.task_id,
        index=live.session.index,
        attempt=live.session.attempt,
        stage=live.session.stage,
        attempts=live.lease.earlier,
        score=counted(live.score, live.failure),
        failure=live.failure,
        statistics=statistics,
        certificate=live.certificate,
        traces=str(live.paths.traces.relative_to(live.services.paths.root)) if live.traces_written else None,
        kept=told(live.kept),
        left_out=told(live.left_out),
        exit_code=live.exit_code,
        ended_by=live.ended_by,
        policy_updates=live.policy_updates,
        stale=is_stale(live),
        stage_s=live.stage_s,
        versions={**live.services.versions, **harness},
        notes=getattr(live.runtime, "notes", ()),  # a runtime of somebody else's may have none
    )
    return sealed(result, live.task)


def bare_result(live: LiveSession, failure: Failure) -> SessionResult:
    """Of a session whose full result cannot be made: what is known of it from its lease, and why."""
    result = SessionResult(
        session_id=live.session_id,
        task_id=live.session.task_id,
        group_id=live.task.group or live.session.task_id,
        index=live.session.index,
        attempt=live.session.attempt,
        stage=Stage.FAILED,
        attempts=live.lease.earlier,
        failure=failure,
    )
    return sealed(result, live.task)


def final_stage(live: LiveSession) -> Stage:
    if live.timed_out:
        return Stage.TIMED_OUT
    return Stage.FAILED if live.failure else Stage.COMPLETED


def blame(live: LiveSession) -> None:
    """Who is at fault, if the run went wrong. The engine's error explains more than the harness's exit code; a
    harness that reached the model and then failed or never ended is the policy's doing."""
    engine_failure = live.services.slots.engine_failure(live.session_id)
    live.ended_by = live.services.slots.exhausted(live.session_id)
    if live.timed_out:
        message = f"the harness was still running after {live.task.budgets.run_s:g} s"
        timeout = Failure(where="run", type="TimedOut", message=message, policy=live.reached_model)
        live.fail(engine_failure or timeout)
    elif live.exit_code is not None and live.exit_code != 0:
        # A harness that gets no further call says so by its exit code; that the budget ended it is no failure.
        if engine_failure or not live.ended_by:
            live.fail(engine_failure or _exit_failure(live))
    elif not live.reached_model and live.failure is None:
        message = "the harness ended without a model call; does it use the base URL of its slot?"
        live.fail(engine_failure or Failure(where="harness", type="NoCalls", message=message))


def _exit_failure(live: LiveSession) -> Failure:
    code = live.exit_code or 0
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    words = f": {live.harness_words[-500:]}" if live.harness_words else ""
    return Failure(
        where="harness",
        type="HarnessExit",
        message=f"the harness {how}{words}",
        policy=live.reached_model and code > 0,
    )
