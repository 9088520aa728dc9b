"""Scores stored sessions again, with another evaluator or other options. The stored results stay as they are.

The evaluator gets the evidence that it would have had: transcript, output, patch, and a fresh runtime in which the
session's workspace is restored if its task kept it. One that needs the workspace of a session that kept none fails
for that session; one that needs only the transcript does not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from polar import __version__, registry
from polar.config import PermitConfig
from polar.errors import EvaluatorError, SessionError, WorkspaceUnusable, failure_of
from polar.evaluators.base import Evidence, HarnessOutput, RuntimeRequest
from polar.node.leftovers import claim, release
from polar.runs.stored import StoredRun, StoredSession
from polar.runtimes.base import Runtime, SessionFolders
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread
from polar.session.files.patch import PATCH
from polar.session.files.restore import kept_workspace, restore
from polar.session.own_runtime import EvaluatorSetup, EvaluatorSite, runtime_from_base
from polar.session.plugins import runtime_for
from polar.session.postrun import output_files, scored
from polar.store.later_scores import append_score
from polar.store.paths import RunPaths, SessionPaths, new_run_id
from polar.store.private import make_private
from polar.store.seal import seal_of, sealed_later
from polar.types import Failure, LaterScore, Score, SessionResult, Spec, Stage, TaskRequest, Trajectory

AFTER_THE_HARNESS = frozenset({"evaluator", "workspace", "postrun", "teardown", "store"})
"""Where a session may have failed although its harness ended well: such a session can be judged."""
TAIL_BYTES = 8192
"""Of the harness's output, as in a session."""


@dataclass(frozen=True)
class Rescored:
    """A session before and after."""

    session: StoredSession
    later: LaterScore | None = None
    skipped: str = ""
    """Why it was not scored again; then `later` is None."""

    @property
    def before(self) -> float | None:
        return self.session.result.reward if self.session.result else None

    @property
    def after(self) -> float | None:
        return self.later.reward if self.later else None

    @property
    def changed(self) -> bool:
        """None and 0.0 differ."""
        return self.later is not None and self.before != self.after

    @property
    def failed(self) -> bool:
        """The evaluator reached no verdict."""
        failure = self.later.failure if self.later else None
        return failure is not None and failure.infrastructure


@dataclass(frozen=True)
class RescorePlan:
    """Which evaluator scores which session, and how many at once."""

    evaluator: str | None = None
    """None: the one of each task."""
    options: dict[str, Any] | None = None
    """Of another evaluator, all of them; of the task's own, those that change."""
    at_once: int = 2
    write: bool = False
    """Store the scores beside the run's results."""
    permits: PermitConfig = field(default_factory=PermitConfig)
    """What the operator of this machine permits the tasks' runtimes; what the run's own config permitted does not
    count."""

    def spec_for(self, task: TaskRequest) -> Spec:
        own, given = task.evaluator, self.options or {}
        if self.evaluator is None or self.evaluator == own.name:
            return Spec(name=own.name, options=own.options | given)
        return Spec(name=self.evaluator, options=given)


async def rescore(
    run: StoredRun,
    sessions: Sequence[StoredSession],
    plan: RescorePlan,
    on_scored: Callable[[Rescored], None] = lambda _: None,
) -> list[Rescored]:
    """In the order of the sessions. Raises `ConfigError` before anything runs if an evaluator or its options are
    wrong."""
    specs = (plan.spec_for(session.task) for session in sessions)
    for spec in {spec.model_dump_json(): spec for spec in specs}.values():
        registry.options_of("evaluator", registry.find("evaluator", spec.name), spec.options)
    turn, pool = asyncio.Semaphore(plan.at_once), asyncio.Semaphore(plan.at_once)

    async def one(session: StoredSession, folder: RunPaths) -> Rescored:
        async with turn:
            done = await _rescore(session, plan, folder, pool)
            if plan.write and done.later is not None:
                await in_thread(append_score, folder.scores, done.later)
            on_scored(done)
            return done

    async with _folder(run.paths, keep=plan.write) as folder, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(session, folder)) for session in sessions]
    return [task.result() for task in tasks]


@asynccontextmanager
async def _folder(run: RunPaths, *, keep: bool) -> AsyncGenerator[RunPaths]:
    """A new folder of the run, in which the runtimes work. The next node sweeps it if this process is killed."""
    folder = RunPaths.create(run.rescores, new_run_id())
    claim(folder)
    try:
        yield folder
    finally:
        release(folder)
        if keep:
            await in_thread(make_private, folder.root)
        else:
            await in_thread(remove_tree, folder.root)
            if not any(run.rescores.iterdir()):
                run.rescores.rmdir()


async def _rescore(
    session: StoredSession, plan: RescorePlan, folder: RunPaths, pool: asyncio.Semaphore
) -> Rescored:
    result = session.result
    trajectory = await in_thread(lambda: session.trajectory)
    if result is None:
        return Rescored(session, skipped=f"it has not ended: {session.stage}")
    if result.failure is not None and result.failure.where not in AFTER_THE_HARNESS:
        return Rescored(session, skipped=f"it is not judged: {result.failure.where}: {result.failure.type}")
    if trajectory is None:
        return Rescored(session, skipped="it has no traces")
    spec, paths = plan.spec_for(session.task), folder.session(session.session_id)
    attempt = _Attempt(session, result, spec, paths, trajectory, plan.permits)
    return Rescored(session, await attempt.score(pool))


@dataclass(frozen=True)
class _Attempt:
    """One evaluator on one session."""

    session: StoredSession
    result: SessionResult
    spec: Spec
    paths: SessionPaths
    """Where the runtimes work now; the session's own are `stored`."""
    trajectory: Trajectory
    permits: PermitConfig

    @property
    def stored(self) -> SessionPaths:
        return self.session.run.session(self.session.session_id)

    @property
    def task(self) -> TaskRequest:
        return self.session.task.model_copy(update={"evaluator": self.spec})

    async def score(self, pool: asyncio.Semaphore) -> LaterScore:
        score: Score | None = None
        failure: Failure | None = None
        notes: list[str] = []
        try:
            async with AsyncExitStack() as teardown:
                score = await self._evaluate(teardown, pool, notes)
        except (Exception, SystemExit) as error:
            failure = error.failure if isinstance(error, SessionError) else failure_of("evaluator", error)
            if isinstance(error.__cause__, WorkspaceUnusable):  # the agent left it like that
                failure = Failure(where="workspace", type="WorkspaceUnusable", message=failure.message, agent=True)
                score = Score(reward=0.0, reasons=(f"{failure.type}: {failure.message}",))
            else:
                score = None
        return sealed_later(
            LaterScore(
                session_id=self.session.session_id,
                attempt=self.result.attempt,
                result_seal=self.result.seal or seal_of(self.result, self.session.task),
                evaluator=self.spec,
                score=score.finite() if score else None,
                failure=failure,
                notes=tuple(notes),
                made_at=time.time(),
                versions={"polar": __version__},
            )
        )

    async def _evaluate(self, teardown: AsyncExitStack, pool: asyncio.Semaphore, notes: list[str]) -> Score:
        site = EvaluatorSite(self.session.session_id, self.task, self.paths, permits=self.permits)
        setup = EvaluatorSetup(site, pool)
        teardown.push_async_callback(setup.end)
        setup.begin()
        runtime = await self._restored(teardown, notes)
        prepared = await setup.ready()
        own = prepared.own_runtime
        evidence = Evidence(
            task=self.task,
            runtime=runtime_for("evaluator", self.spec, runtime),
            trajectory=self.trajectory,
            exit_code=self.result.exit_code,
            timed_out=self.result.stage is Stage.TIMED_OUT,
            patch=self.stored.patch if PATCH in self.result.kept and self.stored.patch.is_file() else None,
            calls=tuple(await in_thread(lambda: self.session.calls)),
            own_runtime=None if own is None else runtime_for("evaluator", self.spec, own),
            output=await in_thread(_output_of, self.stored),
            stage_s=dict(self.result.stage_s),
            endpoints=None,  # who rescores a run chooses the evaluator
            logs=self.paths.evaluator_logs,
        )
        budget_s = self.task.budgets.postrun_s
        try:
            async with asyncio.timeout(budget_s):
                return await scored(self.spec, prepared.evaluator, evidence)
        except TimeoutError as error:
            raise EvaluatorError(f"no verdict within {budget_s:g} s (budgets.postrun_s)") from error

    async def _restored(self, teardown: AsyncExitStack, notes: list[str]) -> Runtime:
        """If it cannot be restored, only an evaluator that uses it fails."""
        paths = self.paths
        folders = SessionFolders(self.session.session_id, paths.place, paths.logs, permits=self.permits)
        budget_s = self.task.budgets.init_s
        try:
            kept = kept_workspace(self.result, self.stored)
            notes += kept.notes
            async with asyncio.timeout(budget_s):
                starting = runtime_from_base(self.session.task, RuntimeRequest(), folders)
                runtime = await teardown.enter_async_context(starting)
                await restore(runtime, kept)
                return runtime
        except TimeoutError:
            why = f"it was not restored within {budget_s:g} s (budgets.init_s)"
        except (Exception, SystemExit) as error:
            why = error.failure.message if isinstance(error, SessionError) else str(error)
        return cast("Runtime", _NoRuntime(why))


class _NoRuntime:
    """Stands for the runtime of a session that cannot be restored."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise EvaluatorError(f"the evaluator needs the session's workspace: {self._why}")


def _output_of(stored: SessionPaths) -> HarnessOutput:
    files = output_files(stored)
    return HarnessOutput(_tail(files["stdout"]), _tail(files["stderr"]), files["stdout"], files["stderr"])


def _tail(path: Path | None) -> str:
    return "" if path is None else path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
