"""The sessions of an evaluation, policy by policy: run here, at a server, or read from a stored run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer
from pydantic import ValidationError

from polar.cli.output import error_console
from polar.cli.runs.eval_server import PolicyEnd, run_tasks_at
from polar.cli.runs.progress import EXIT_FAILED_SESSIONS, EXIT_INTERRUPTED, PhasedBar, RunProgress
from polar.cli.runs.run import run_watched
from polar.config import Config
from polar.errors import PolarError
from polar.node import open_node
from polar.runs.event_loop import run_served
from polar.runs.running import prepare_machine
from polar.runs.stored import StoredRun, load_run
from polar.store.paths import RunPaths, write_whole
from polar.trainers.evaluation import EvalReport, cancelled_by_client
from polar.types import SessionResult, TaskRequest

REPORT = "eval.json"

TaskOutcome = tuple[TaskRequest, SessionResult]


@dataclass(frozen=True)
class PolicyRun:
    """The sessions of one policy, kept as a run."""

    name: str
    paths: RunPaths
    sessions: list[TaskOutcome]
    """Those that have an outcome. If the evaluation broke off, a session that a client cancelled has none."""
    planned: int
    """Sessions that were to be run."""
    end: PolicyEnd
    error: Exception | None = None
    """What broke it off, if the user did not."""

    @property
    def interrupted(self) -> bool:
        return self.end.interrupted

    @property
    def not_ended(self) -> int:
        return self.planned - len(self.sessions)

    def keep(self, report: EvalReport) -> None:
        write_whole(self.paths.root / REPORT, report.model_dump_json(indent=2).encode())


@dataclass(frozen=True)
class EvaluatedPolicies:
    """All that was run. Less than was asked for if the user interrupted it, or an error did."""

    done: list[PolicyRun]
    failed: str = ""
    """The policy that broke off, and with it those after it; empty: none did."""
    error: Exception | None = None

    @property
    def interrupted(self) -> bool:
        return any(policy.interrupted for policy in self.done)


def check_start(name: str, config: Config, tasks: Sequence[TaskRequest], *, quiet: bool) -> None:
    """Starts what the policy needs and stops it again. One that cannot start is found before another has run for
    hours."""
    try:
        with PhasedBar(quiet=quiet) as bar:
            run_served(_start(name, config, tasks, bar))
    except PolarError as error:
        raise PolarError(f"policy {name} cannot start: {error}") from error


async def _start(name: str, config: Config, tasks: Sequence[TaskRequest], bar: PhasedBar) -> None:
    bar.phase(f"Checking that policy {name} starts")
    await prepare_machine(tasks, config.permits, bar.phase)
    with tempfile.TemporaryDirectory(prefix="polar-eval-") as folder:
        async with open_node(config, RunPaths.create(Path(folder))):
            pass


def run_each(
    configs: Mapping[str, Config],
    runs_dir: Path | None,
    tasks: Sequence[TaskRequest],
    server: str | None,
    *,
    quiet: bool,
) -> EvaluatedPolicies:
    """One policy after the other. An interrupt or an error ends them all; an error is raised if no session has
    ended."""
    done: list[PolicyRun] = []
    for name, config in configs.items():
        try:
            done.append(_run_policy(name, config, runs_dir or config.runs_dir, tasks, server, quiet=quiet))
        except Exception as error:  # raised again after the report
            if not done:
                raise
            return EvaluatedPolicies(done, name, error)
        if done[-1].interrupted or done[-1].error is not None:
            return EvaluatedPolicies(done, name, done[-1].error)
    return EvaluatedPolicies(done)


def _run_policy(
    name: str, config: Config, runs_dir: Path, tasks: Sequence[TaskRequest], server: str | None, *, quiet: bool
) -> PolicyRun:
    """Raises what stops it before its first session has ended."""
    paths, progress = RunPaths.create(runs_dir), RunProgress(tasks, quiet=quiet)
    planned = sum(task.num_samples for task in tasks)
    where = f" at {server}" if server else ""
    progress.console.print(f"policy {name}{where}: {len(tasks)} tasks, {planned} sessions")
    end, failure = PolicyEnd(), None
    try:
        if server is None:
            end = PolicyEnd(run_watched(config, paths, tasks, progress))
        else:
            with progress:
                end = run_served(run_tasks_at(server, config, paths, tasks, progress))
    except Exception as error:  # raised again after the report
        if not progress.results:
            raise
        failure = error
    by_id = {task.task_id: task for task in tasks}
    sessions = [(by_id[result.task_id], result) for result in progress.results]
    sessions = _counted(sessions, broke_off=end.interrupted or failure is not None)
    return PolicyRun(name, paths, sessions, planned, end, failure)


def stored_policy(which: str, runs_dir: Path | None) -> PolicyRun:
    """A run by its id, the beginning of it or its folder, with `NAME=` before it if the policy has a name."""
    name, equals, run = which.partition("=")
    stored = load_run(run if equals else which, runs_dir=runs_dir)
    record = stored.record
    broke_off = record.interrupted or record.finished is None
    ended = [(session.task, session.result) for session in stored if session.result is not None]
    sessions = _counted(ended, broke_off=broke_off)
    if not sessions:
        raise PolarError(f"run {stored.run_id} has no session that has ended")
    planned = _planned(stored, len(sessions)) if broke_off else len(stored)
    return PolicyRun(name if equals else stored.run_id, stored.paths, sessions, planned, PolicyEnd())


def _counted(ended: list[TaskOutcome], *, broke_off: bool) -> list[TaskOutcome]:
    """Those with an outcome. `polar run --resume` runs the others again."""
    return [each for each in ended if not (broke_off and cancelled_by_client(each[1]))]


def _planned(stored: StoredRun, ended: int) -> int:
    """Of a run that broke off. Sessions that never began are not in its journal: those of this machine are in its
    tasks, those of a server were counted in the report."""
    if stored.paths.tasks.is_file():
        with stored.paths.tasks.open("rb") as lines:
            return sum(TaskRequest.model_validate_json(line).num_samples for line in lines)
    with suppress(OSError, ValidationError):
        report = EvalReport.model_validate_json((stored.paths.root / REPORT).read_bytes())
        mine = [name for name, run_id in report.runs.items() if run_id == stored.run_id]
        return ended + sum(report.not_ended.get(name, 0) for name in mine)
    return len(stored)


def end_evaluation(policies: EvaluatedPolicies, steps: Sequence[str]) -> None:
    """Exits with the code for how the sessions went. `steps`: commands that go on."""
    if isinstance(policies.error, PolarError):
        raise PolarError("\n  ".join([f"policy {policies.failed}: {policies.error}", *steps])) from policies.error
    out = error_console()
    if policies.interrupted:
        where = ", ".join(str(policy.paths.root) for policy in policies.done)
        left = [policy.end.left for policy in policies.done if policy.end.left]
        kept = f"interrupted; what was captured is kept in {where}"
        out.print("\n  ".join([kept, *left, *steps]), style="yellow", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if policies.error is not None:
        raise policies.error
    if any(result.failed_by_infrastructure for policy in policies.done for _, result in policy.sessions):
        raise typer.Exit(EXIT_FAILED_SESSIONS)
