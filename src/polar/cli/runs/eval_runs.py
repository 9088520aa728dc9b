"""The sessions of an evaluation: run here, at a server, or read from a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from polar.cli.output import error_console
from polar.cli.runs.progress import EXIT_FAILED_SESSIONS, EXIT_INTERRUPTED, RunProgress
from polar.cli.runs.run import run_watched
from polar.cli.service.remote import check_server
from polar.config import Config
from polar.errors import PolarError
from polar.runs.event_loop import run_served
from polar.runs.state import held, record_of
from polar.runs.stored import load_run
from polar.store.paths import RunPaths, write_whole
from polar.trainers.evaluation import EvalReport
from polar.types import SessionResult, TaskRequest

REPORT = "eval.json"


@dataclass(frozen=True)
class PolicyRun:
    """The sessions of one policy, kept as a run."""

    name: str
    paths: RunPaths
    sessions: list[tuple[TaskRequest, SessionResult]]
    planned: int
    """Sessions that were to be run; an interrupted evaluation has fewer."""
    interrupted: bool = False

    def keep(self, report: EvalReport) -> None:
        write_whole(self.paths.root / REPORT, report.model_dump_json(indent=2).encode())


def run_here(name: str, config: Config, runs_dir: Path, tasks: Sequence[TaskRequest], *, quiet: bool) -> PolicyRun:
    paths, progress = RunPaths.create(runs_dir), _progress(name, tasks, quiet=quiet)
    interrupted = run_watched(config, paths, tasks, progress)
    return _ended(name, paths, tasks, progress, interrupted=interrupted)


def run_at_server(
    name: str, config: Config, runs_dir: Path, tasks: Sequence[TaskRequest], server: str, *, quiet: bool
) -> PolicyRun:
    """The server's results, calls and traces are copied into a run of this machine. An interrupt cancels the
    tasks."""
    paths, progress = RunPaths.create(runs_dir), _progress(name, tasks, quiet=quiet)
    with progress:
        interrupted = run_served(_at_server(config, paths, tasks, progress, server))
    return _ended(name, paths, tasks, progress, interrupted=interrupted)


async def _at_server(
    config: Config, paths: RunPaths, tasks: Sequence[TaskRequest], progress: RunProgress, server: str
) -> bool:
    from polar.child_processes import stop_requested
    from polar.cli.service.up_tasks import TasksElsewhere
    from polar.client import PolarClient
    from polar.store.journal import Journal

    stop, interrupted = stop_requested(), True
    with held(paths, record_of(paths, config, tasks)) as run:
        await check_server(server)
        async with await Journal.open(paths.journal) as journal, PolarClient(server) as client:
            served = TasksElsewhere(client, tasks, progress, stop)
            run.begin({})
            try:
                await served.run()
                await served.keep(paths, journal)
                interrupted = stop.is_set()
            finally:
                run.end(len(progress.results), interrupted=interrupted)
    return stop.is_set()


def stored_policy(which: str, runs_dir: Path | None) -> PolicyRun:
    """A run by its id, the beginning of it or its folder, with `NAME=` before it if the policy has a name."""
    name, equals, run = which.partition("=")
    stored = load_run(run if equals else which, runs_dir=runs_dir)
    sessions = [(session.task, session.result) for session in stored if session.result is not None]
    if not sessions:
        raise PolarError(f"run {stored.run_id} has no session that has ended")
    return PolicyRun(name if equals else stored.run_id, stored.paths, sessions, len(stored))


def end_evaluation(policies: Sequence[PolicyRun]) -> None:
    """Exits with the code for how the sessions went."""
    if any(policy.interrupted for policy in policies):
        where = ", ".join(str(policy.paths.root) for policy in policies)
        error_console().print(f"interrupted; what was captured is kept in {where}", style="yellow")
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(result.failed_by_infrastructure for policy in policies for _, result in policy.sessions):
        raise typer.Exit(EXIT_FAILED_SESSIONS)


def _progress(name: str, tasks: Sequence[TaskRequest], *, quiet: bool) -> RunProgress:
    progress = RunProgress(tasks, quiet=quiet)
    progress.console.print(
        f"policy {name}: {len(tasks)} tasks, {sum(task.num_samples for task in tasks)} sessions"
    )
    return progress


def _ended(
    name: str, paths: RunPaths, tasks: Sequence[TaskRequest], progress: RunProgress, *, interrupted: bool
) -> PolicyRun:
    by_id = {task.task_id: task for task in tasks}
    sessions = [(by_id[result.task_id], result) for result in progress.results]
    return PolicyRun(name, paths, sessions, sum(task.num_samples for task in tasks), interrupted)
