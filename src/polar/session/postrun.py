"""POSTRUN: calls become traces, the workspace is judged, the result is written.

Whatever went wrong before, the calls that were captured become traces: a time-out has a budget of its own here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import repeat

import msgspec

from polar import registry
from polar.builders.base import Builder
from polar.builders.certificate import examine
from polar.errors import SessionError, WorkspaceUnusable, boundary
from polar.evaluators.base import Evaluator, Evidence
from polar.session.keep import told
from polar.session.live import LiveSession
from polar.session.patch import PATCH
from polar.session.staleness import is_stale
from polar.session.verdict import verdict
from polar.store.trajectories import write_trajectory
from polar.types import (
    Call,
    Certificate,
    Failure,
    Finding,
    Score,
    SessionResult,
    Stage,
    Trajectory,
    TrajectoryStatistics,
)


async def build(live: LiveSession) -> None:
    with boundary("builder"):
        calls = await live.services.slots.calls(live.session_id)
        live.learn(reached_model=bool(calls))
        builder: Builder = registry.make("builder", live.task.builder)
        built = await asyncio.to_thread(_built, builder, live.session_id, calls)
        live.trajectory, live.certificate, findings = built
    if findings:
        raise SessionError(_not_exact(findings))


def _built(
    builder: Builder, session_id: str, calls: Sequence[Call]
) -> tuple[Trajectory, Certificate, Sequence[Finding]]:
    trajectory = builder.build(session_id, calls)
    return trajectory, *examine(calls, trajectory)


def _not_exact(findings: Sequence[Finding]) -> Failure:
    """The traces are kept, for whoever looks into it; the failure keeps them out of training."""
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return Failure(where="builder", type="NotExact", message=f"{findings[0]}{more}")


async def judge(live: LiveSession) -> None:
    """A session that failed is not judged: what the agent brought about is worth 0.0, anything else nothing."""
    if live.failure is None:
        await _evaluate(live)
    if live.failure is not None and live.failure.policy:
        live.score = Score(reward=0.0, reasons=(f"{live.failure.type}: {live.failure.message}",))
    if live.score is not None and live.trajectory is not None:
        with boundary("evaluator"):
            live.trajectory = _rewarded(live.trajectory, live.score)


async def _evaluate(live: LiveSession) -> None:
    assert live.runtime is not None and live.trajectory is not None, "the traces come before the verdict"
    evidence = Evidence(
        task=live.task,
        runtime=live.runtime,
        trajectory=live.trajectory,
        exit_code=live.outcome.exit_code,
        timed_out=live.timed_out,
        patch=live.paths.patch if PATCH in live.kept else None,
    )
    try:
        with boundary("evaluator"):
            evaluator: Evaluator = registry.make("evaluator", live.task.evaluator)
            live.score = await evaluator.evaluate(evidence)
    except SessionError as error:
        if not isinstance(error.__cause__, WorkspaceUnusable):
            raise
        live.learn(workspace_fault=str(error.__cause__))
        blame(live)


def drop_reward(live: LiveSession) -> None:
    """A session that failed through infrastructure, be it after it was judged, is worth nothing."""
    if live.failure is not None and not live.failure.policy:
        live.score = None
        if live.trajectory is not None:
            traces = tuple(msgspec.structs.replace(trace, reward=None) for trace in live.trajectory.traces)
            live.trajectory = msgspec.structs.replace(live.trajectory, traces=traces)


async def write(live: LiveSession) -> None:
    drop_reward(live)
    if live.trajectory is not None:
        with boundary("store"):
            await asyncio.to_thread(write_trajectory, live.paths.traces, live.trajectory)
        live.traces_written = True


def result_of(live: LiveSession) -> SessionResult:
    trajectory = live.trajectory
    harness = {"harness": f"{live.harness.name} {live.harness.version}".strip()} if live.harness else {}
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics if trajectory else {})
    return SessionResult(
        session_id=live.session_id,
        task_id=live.session.task_id,
        index=live.session.index,
        attempt=live.session.attempt,
        stage=live.session.stage,
        score=live.score,
        failure=live.failure,
        statistics=statistics,
        certificate=live.certificate,
        traces=str(live.paths.traces.relative_to(live.services.paths.root)) if live.traces_written else None,
        kept=told(live.kept),
        left_out=told(live.left_out),
        exit_code=live.outcome.exit_code,
        ended_by=live.outcome.calls.exhausted,
        waited_s=round(live.outcome.waits.total_s, 4),
        policy_updates=live.policy_updates,
        stale=is_stale(live),
        stage_s=live.stage_s,
        versions={**live.services.versions, **harness},
        notes=getattr(live.runtime, "notes", ()),  # a runtime of somebody else's may have none
    )


def final_stage(live: LiveSession) -> Stage:
    if live.timed_out:
        return Stage.TIMED_OUT
    return Stage.FAILED if live.failure else Stage.COMPLETED


def blame(live: LiveSession) -> None:
    live.learn(calls=live.services.slots.outcome(live.session_id))
    if failure := verdict(live.outcome):
        live.fail(failure)


def _rewarded(trajectory: Trajectory, score: Score) -> Trajectory:
    """The session's reward goes to every trace, unless the evaluator judged them one by one. A trace with
    nothing to train on gets none."""
    rewards = score.trace_rewards
    if rewards is not None and len(rewards) != len(trajectory.traces):
        raise SessionError(
            Failure(
                where="evaluator",
                type="WrongRewards",
                message=f"{len(rewards)} rewards for {len(trajectory.traces)} traces",
            )
        )
    given = rewards if rewards is not None else repeat(score.reward)
    traces = tuple(
        msgspec.structs.replace(trace, reward=reward if any(trace.loss_mask) else None)
        for trace, reward in zip(trajectory.traces, given, strict=False)
    )
    return msgspec.structs.replace(trajectory, traces=traces)
