"""POSTRUN: builds calls into traces, judges the workspace, writes the result.

Captured calls become traces whatever went wrong before: POSTRUN has a time budget of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from polar import registry
from polar.audit.certificate import examine
from polar.builders.base import Builder
from polar.builders.labels import check_call_rewards, check_rewards, counted, labelled
from polar.errors import SessionError, WorkspaceUnusable, boundary
from polar.evaluators.base import Evaluator, Evidence, HarnessOutput, score_of
from polar.runtimes.base import Runtime
from polar.runtimes.host.threads import in_thread
from polar.session.files.keep import shortened
from polar.session.files.patch import PATCH
from polar.session.live import LiveSession
from polar.session.plugins import call, call_foreign, expect, runtime_for
from polar.session.staleness import is_stale
from polar.session.verdict import verdict
from polar.store.paths import SessionPaths
from polar.store.seal import sealed
from polar.store.trajectories import write_trajectory
from polar.types import (
    Call,
    Certificate,
    Failure,
    Finding,
    Score,
    SessionResult,
    Spec,
    Stage,
    Trajectory,
    TrajectoryStatistics,
)


async def build(live: LiveSession) -> None:
    with boundary("builder"):
        live.calls = tuple(await live.services.slots.calls(live.session_id))
        live.learn(reached_model=bool(live.calls))
        built = await call("builder", _built, live.task.builder, live.session_id, live.calls)
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
    """The traces are kept for inspection; the failure keeps them out of training."""
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return Failure(where="builder", type="NotExact", message=f"{findings[0]}{more}")


async def judge(live: LiveSession) -> None:
    """A failed session is not judged: its reward is 0.0 if the agent caused the failure, else there is none."""
    if live.failure is None:
        await _evaluate(live)
    if live.failure is not None and live.failure.agent:
        live.score = Score(reward=0.0, reasons=(f"{live.failure.type}: {live.failure.message}",))


async def _evaluate(live: LiveSession) -> None:
    assert live.trajectory is not None and live.evaluator_setup is not None, "RUNNING and the traces come first"
    spec = live.task.evaluator
    prepared = await live.evaluator_setup.ready()
    evidence = _evidence(live, prepared.own_runtime)
    try:
        live.score = await scored(spec, prepared.evaluator, evidence)
    except SessionError as error:
        if not isinstance(error.__cause__, WorkspaceUnusable):
            raise
        live.learn(workspace_fault=str(error.__cause__))
        blame(live)


async def scored(spec: Spec, evaluator: Evaluator, evidence: Evidence) -> Score:
    """The evaluator's checked verdict. Raises a `SessionError` if there is none."""
    with boundary("evaluator"):
        if evidence.logs is not None:
            await in_thread(evidence.logs.mkdir, parents=True, exist_ok=True)
        returned = await call_foreign("evaluator", spec, evaluator.evaluate, evidence)
        score = score_of(returned, spec.name)
        check_rewards(score, evidence.trajectory)
        check_call_rewards(score, evidence.calls)
        return score


def _evidence(live: LiveSession, own_runtime: Runtime | None) -> Evidence:
    assert live.runtime is not None and live.trajectory is not None, "the traces come before the verdict"
    spec = live.task.evaluator
    return Evidence(
        task=live.task,
        runtime=runtime_for("evaluator", spec, live.runtime),
        trajectory=live.trajectory,
        exit_code=live.outcome.exit_code,
        timed_out=live.timed_out,
        patch=live.paths.patch if PATCH in live.kept else None,
        calls=live.calls,
        own_runtime=None if own_runtime is None else runtime_for("evaluator", spec, own_runtime),
        output=HarnessOutput(live.stdout_tail, live.stderr_tail, **output_files(live.paths)),
        stage_s=dict(live.stage_s),
        endpoints=live.services.permits.endpoints,
        logs=live.paths.evaluator_logs,
    )


def output_files(paths: SessionPaths) -> dict[str, Path | None]:
    """Where the harness's whole output is."""
    files = {name: paths.logs / f"harness.{name}" for name in ("stdout", "stderr")}
    return {name: path if path.is_file() else None for name, path in files.items()}


async def write(live: LiveSession) -> None:
    """Runs after every other step that can fail, so that the traces have the reward of the result."""
    trajectory = await traces_of(live)
    if trajectory is not None:
        with boundary("store"):
            await asyncio.to_thread(write_trajectory, live.paths.traces, trajectory)
        live.traces_written = True


async def traces_of(live: LiveSession) -> Trajectory | None:
    """The traces with the labels and rewards of the session's end. In a thread, because each trace is checked
    again."""
    if live.trajectory is None:
        return None
    return await asyncio.to_thread(labelled, live.trajectory, live.lease, live.score, live.failure)


def result_of(live: LiveSession) -> SessionResult:
    trajectory = live.trajectory
    harness = {"harness": live.harness_version} if live.harness_version else {}
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics if trajectory else {})
    return _sealed(
        live,
        stage=live.session.stage,
        score=counted(live.score, live.failure),
        failure=live.failure,
        statistics=statistics,
        certificate=live.certificate,
        health=live.health,
        traces=str(live.paths.traces.relative_to(live.services.paths.root)) if live.traces_written else None,
        kept=shortened(live.kept),
        left_out=shortened(live.left_out),
        exit_code=live.outcome.exit_code,
        ended_by=live.outcome.calls.exhausted,
        cancel_reason=live.cancel_reason if live.session.stage is Stage.CANCELLED else "",
        waited_s=round(live.outcome.waits.total_s, 4),
        policy_updates=live.policy_updates,
        stale=is_stale(live),
        stage_s=live.stage_s,
        versions={**live.services.versions, **harness},
        notes=_notes(live),
    )


def _notes(live: LiveSession) -> tuple[str, ...]:
    own: Any = getattr(live.runtime, "notes", ())  # a runtime plug-in may have none
    if not isinstance(own, tuple):  # the result's model refuses it by name
        return own
    return (*cast("tuple[str, ...]", own), *live.services.notes_on(live.calls))


def bare_result(live: LiveSession, failure: Failure) -> SessionResult:
    """For a session whose full result cannot be made."""
    return _sealed(live, stage=Stage.FAILED, failure=failure)


def _sealed(live: LiveSession, **fields: Any) -> SessionResult:
    """Nothing may change the result after this."""
    session = live.session
    result = SessionResult(
        session_id=session.session_id,
        task_id=session.task_id,
        group_id=live.task.group or session.task_id,
        index=session.index,
        attempt=session.attempt,
        attempts=live.lease.earlier,
        **fields,
    )
    return sealed(result, live.task)


def final_stage(live: LiveSession) -> Stage:
    if live.timed_out:
        return Stage.TIMED_OUT
    return Stage.FAILED if live.failure else Stage.COMPLETED


def has_failed(live: LiveSession) -> bool:
    """Whether the run surely ended in a failure, as known before its calls are built into traces."""
    calls = live.services.slots.outcome(live.session_id)
    outcome = msgspec.structs.replace(live.outcome, calls=calls, reached_model=True)
    return live.failure is not None or verdict(outcome) is not None


def blame(live: LiveSession) -> None:
    live.learn(calls=live.services.slots.outcome(live.session_id))
    if failure := verdict(live.outcome):
        live.fail(failure)
