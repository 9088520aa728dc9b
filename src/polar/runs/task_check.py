"""Checks tasks without a model: a task is sound if its solution earns 1.0 and an empty attempt 0.0.

Each attempt has a runtime that begins as a session of the task does, and the task's own evaluator judges it as it
judges a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from polar.config import PermitConfig
from polar.data.solutions import Solution
from polar.errors import EvaluatorError, RuntimeFailure, SessionError, failure_of
from polar.evaluators.base import Evidence, HarnessOutput, RuntimeRequest
from polar.node.leftovers import claim, release
from polar.runtimes.base import HOME, Command, Finished, Runtime, SessionFolders
from polar.session.own_runtime import EvaluatorSetup, EvaluatorSite, runtime_from_base
from polar.session.plugins import runtime_for
from polar.session.postrun import scored
from polar.store.paths import RunPaths, SessionPaths
from polar.types import Score, TaskRequest, Trajectory

FOLDER = ".polar-solution"
"""In the home, and only while the solution runs."""
REMOVE = 'rm -rf "$1"; [ -z "$2" ] || ! [ -L /solution ] || rm -f /solution'
SHOWN = 300


@dataclass(frozen=True)
class CheckedAttempt:
    reward: float | None
    """None: there is no verdict."""
    why: str = ""
    """The evaluator's reasons, or why there is no verdict."""


@dataclass(frozen=True)
class CheckedTask:
    task_id: str
    empty: CheckedAttempt
    solution: CheckedAttempt | None = None
    """None: the task set has none."""

    @property
    def problem(self) -> str:
        """Empty: the task is sound."""
        found: list[str] = []
        if self.solution is None:
            found.append("it has no solution to check with")
        elif self.solution.reward != 1.0:
            found.append(_words("the solution", self.solution))
        if self.empty.reward != 0.0:
            found.append(_words("an empty attempt", self.empty))
        return "; ".join(found)


@dataclass(frozen=True)
class CheckPlan:
    solutions: Mapping[str, Solution]
    permits: PermitConfig
    at_once: int = 2


async def check_solutions(
    tasks: Sequence[TaskRequest],
    plan: CheckPlan,
    folder: RunPaths,
    on_checked: Callable[[CheckedTask], None] = lambda _: None,
) -> list[CheckedTask]:
    """In the order of the tasks. Logs of the attempts are in `folder`."""
    turn, pool = asyncio.Semaphore(plan.at_once), asyncio.Semaphore(plan.at_once)

    async def one(task: TaskRequest) -> CheckedTask:
        async with turn:
            name, solution = str(task.task_id), plan.solutions.get(str(task.task_id))
            empty = await _Attempt(task, f"{name}.empty", folder, plan.permits, None).judged(pool)
            solved = None
            if solution is not None:
                solved = await _Attempt(task, f"{name}.solution", folder, plan.permits, solution).judged(pool)
            checked = CheckedTask(name, empty, solved)
            on_checked(checked)
            return checked

    async with _claimed(folder), asyncio.TaskGroup() as group:
        work = [group.create_task(one(task)) for task in tasks]
    return [each.result() for each in work]


@asynccontextmanager
async def _claimed(folder: RunPaths) -> AsyncGenerator[None]:
    """The next node sweeps the folder if this process is killed."""
    claim(folder)
    try:
        yield
    finally:
        release(folder)


@dataclass(frozen=True)
class _Attempt:
    task: TaskRequest
    name: str
    folder: RunPaths
    permits: PermitConfig
    solution: Solution | None

    @property
    def paths(self) -> SessionPaths:
        return SessionPaths(self.folder.sessions / self.name)

    async def judged(self, pool: asyncio.Semaphore) -> CheckedAttempt:
        try:
            async with AsyncExitStack() as teardown:
                score, finished = await self._score(teardown, pool)
        except (Exception, SystemExit) as error:
            failure = error.failure if isinstance(error, SessionError) else failure_of("check", error)
            return CheckedAttempt(None, f"{failure.type}: {failure.message}")
        why = "; ".join(score.reasons)
        if finished is not None and finished.exit_code != 0:
            ended = f"its script exited with code {finished.exit_code}: {finished.stderr_tail.strip()[-SHOWN:]}"
            why = "; ".join(filter(None, (ended, why)))
        return CheckedAttempt(score.reward, why)

    async def _score(self, teardown: AsyncExitStack, pool: asyncio.Semaphore) -> tuple[Score, Finished | None]:
        task, paths, spec = self.task, self.paths.create(), self.task.evaluator
        setup = EvaluatorSetup(EvaluatorSite(self.name, task, paths, permits=self.permits), pool)
        teardown.push_async_callback(setup.end)
        folders = SessionFolders(self.name, paths.place, paths.logs, permits=self.permits)
        async with _in_time(task.budgets.init_s, "the runtime was not ready", "init_s"):
            runtime = await teardown.enter_async_context(runtime_from_base(task, RuntimeRequest(), folders))
        finished = await self._solve(runtime)
        prepared = await setup.ready()
        own = prepared.own_runtime
        evidence = Evidence(
            task=task,
            runtime=runtime_for("evaluator", spec, runtime),
            trajectory=Trajectory(session_id=self.name, builder=task.builder.name),
            exit_code=0 if finished is None else finished.exit_code,
            timed_out=False,
            own_runtime=None if own is None else runtime_for("evaluator", spec, own),
            output=HarnessOutput() if finished is None else _output(finished, paths.logs),
            endpoints=self.permits.endpoints,
            logs=paths.evaluator_logs,
        )
        async with _in_time(task.budgets.postrun_s, "there is no verdict", "postrun_s"):
            return (await scored(spec, prepared.evaluator, evidence)).finite(), finished

    async def _solve(self, runtime: Runtime) -> Finished | None:
        """Afterwards its processes are dead and its files gone, as a harness's would be."""
        if self.solution is None:
            return None
        for path, content in self.solution.files.items():
            await runtime.put(f"{FOLDER}/{path}", content, home=True)
        place, own_root = f"{runtime.home}/{FOLDER}", "yes" if runtime.home == HOME else ""
        argv = ("sh", "-c", self.solution.script, "sh", place, self.solution.argument, own_root)
        async with _in_time(self.task.budgets.run_s, "the solution did not end", "run_s"):
            finished = await runtime.exec(Command(argv, log_name="solution"))
        await runtime.kill()
        await runtime.exec(Command(("sh", "-c", REMOVE, "sh", place, own_root), log_name="solution-removed"))
        return finished


@asynccontextmanager
async def _in_time(budget_s: float, otherwise: str, name: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(budget_s):
            yield
    except TimeoutError as error:
        error_type = EvaluatorError if name == "postrun_s" else RuntimeFailure
        raise error_type(f"{otherwise} within {budget_s:g} s (budgets.{name})") from error


def _output(finished: Finished, logs: Path) -> HarnessOutput:
    files = [path if path.is_file() else None for path in (logs / "solution.stdout", logs / "solution.stderr")]
    return HarnessOutput(finished.stdout_tail, finished.stderr_tail, *files)


def _words(what: str, attempt: CheckedAttempt) -> str:
    how = "has no verdict" if attempt.reward is None else f"earns {attempt.reward:g}"
    return f"{what} {how}" + (f" ({attempt.why})" if attempt.why else "")
