"""`polar run`: the sessions of a task file on this machine, from start to traces."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import ConfigOption, JsonOption, SamplesOption, again, checked_config
from polar.cli.output import console
from polar.cli.task_choice import (
    FilterOption,
    HarnessesOption,
    LimitOption,
    SampleOption,
    SeedOption,
    ShardOption,
    choice_of,
    harness_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from polar.cli.options import CommandForm
    from polar.cli.runs.progress import RunProgress
    from polar.config import Config
    from polar.data.source import EarlierSessions
    from polar.runs.resume import ResumePlan
    from polar.store.paths import RunPaths
    from polar.types import SessionResult, TaskRequest


def run(  # noqa: PLR0913
    ctx: typer.Context,
    tasks: Annotated[Path | None, typer.Argument(help="A task file, a folder, or git+URL@REV#FOLDER.")] = None,
    config: ConfigOption = None,
    samples: SamplesOption = None,
    harness: HarnessesOption = None,
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue a stored run: what has a result is kept.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: infrastructure failures again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the sessions of a task file here and turn them into traces.

    Exit code 0: no session failed through infrastructure (rewards may be low).
    1: some did. 2: the input was refused. 130: Ctrl-C, which cancels the running
    sessions and keeps what was captured; --resume RUN continues such a run.

        polar run tasks.toml --harness pi --harness codex
        polar run tasks.toml --filter 'metadata.repo=owner/*' --sample 20
        polar run tasks.toml --shard 1/4
    """
    from polar.errors import ConfigError
    from polar.runs.running import tasks_of
    from polar.store.paths import RunPaths, find_run

    choice = choice_of(filters, sample, seed, shard, limit, harness)
    if tasks is None and (resume is None or samples is not None or not choice.is_everything):
        what = "a task file" if resume is None else "the task file too, to which the other options belong"
        raise ConfigError(f"give {what}")
    if retry_failed and resume is None:
        raise ConfigError("--retry-failed needs --resume RUN")
    chosen = checked_config(config)
    runs_dir: Path = ctx.obj or chosen.runs_dir
    given = None if tasks is None else choice.of(tasks_of(tasks, samples))
    if resume is not None:
        paths = find_run(runs_dir, resume)
        plan = _plan(paths, chosen, given, retry_failed=retry_failed)
        _run_and_report(chosen, paths, plan.tasks, plan, again(ctx.obj), json=json)
    else:
        assert given is not None
        _refuse_missing_sources(given)
        _run_and_report(chosen, RunPaths.create(runs_dir), given, None, again(ctx.obj), json=json)


def _plan(
    paths: RunPaths, config: Config, given: Sequence[TaskRequest] | None, *, retry_failed: bool
) -> ResumePlan:
    from polar.runs.event_loop import run_apart
    from polar.runs.resume import planned_resume

    plan = run_apart(planned_resume(paths, config, given, retry_failed=retry_failed))
    _refuse_missing_sources(plan.open_tasks)
    return plan


def _refuse_missing_sources(tasks: Sequence[TaskRequest]) -> None:
    from polar.runs.event_loop import run_apart
    from polar.runs.task_sources import check_sources

    run_apart(check_sources(tasks))


def _run_and_report(
    config: Config,
    paths: RunPaths,
    tasks: Sequence[TaskRequest],
    plan: ResumePlan | None,
    polar: CommandForm,
    *,
    json: bool,
) -> None:
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.summary import print_outcome

    progress = RunProgress(tasks, quiet=json, earlier=plan.results if plan else ())
    if plan is not None:
        progress.console.print(plan.words)
    idle = plan is not None and not plan.open_tasks
    interrupted = False if idle else run_watched(config, paths, tasks, progress, plan.earlier if plan else None)
    print_outcome(progress.results, origin_of(paths), json=json, harness_of=harness_of(tasks))
    end_run(progress, paths, polar, interrupted=interrupted, json=json)


def run_watched(
    config: Config,
    paths: RunPaths,
    tasks: Sequence[TaskRequest],
    progress: RunProgress,
    earlier: EarlierSessions | None = None,
) -> bool:
    """All sessions of the tasks, with live progress. True: the user ended it early."""
    from polar.runs.event_loop import run_served

    try:
        with progress:
            run_served(_run(config, paths, tasks, progress, earlier))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return True
    return False


def origin_of(paths: RunPaths) -> dict[str, str]:
    return {"run_id": paths.run_id, "path": str(paths.root)}


def end_run(progress: RunProgress, paths: RunPaths, polar: CommandForm, *, interrupted: bool, json: bool) -> None:
    """Says what to do next, and exits with the code for how the run went."""
    if progress.results and not json:
        _print_next(paths, progress.results, polar)
    goes_on = f"`{polar(f'run --resume {paths.run_id}')}` continues it"
    progress.end(f"interrupted; what was captured is kept in {paths.root}; {goes_on}" if interrupted else "")


async def _run(
    config: Config,
    paths: RunPaths,
    tasks: Sequence[TaskRequest],
    progress: RunProgress,
    earlier: EarlierSessions | None,
) -> None:
    from polar.runs.running import run_tasks

    stop_on_signals(progress.console)
    await run_tasks(config, paths, tasks, progress, earlier)


def stop_on_signals(out: Console) -> None:
    """Ctrl-C and SIGTERM cancel the run. A second one has no effect: to interrupt the end of a run would leave
    processes and folders behind."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            main.cancel()
        elif signals == 2:
            out.print("stopping: sessions are ended and what was captured is kept", style="yellow")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _print_next(paths: RunPaths, results: list[SessionResult], polar: CommandForm) -> None:
    best = max(results, key=lambda result: (result.reward or 0, result.statistics.calls))
    hints = {
        polar(f"ls {paths.run_id}"): "all sessions",
        polar(f"show {best.session_id}"): "one session, call by call",
        polar(f"show {best.session_id} --messages"): "what was said in it",
        polar(f"show {best.session_id} --tokens"): "its traces, trainable tokens marked",
        polar(f"replay {best.session_id} --builder per_request"): "the same calls, built in another way",
    }
    width = max(map(len, hints))
    out = console()
    out.print(f"\nrun {paths.run_id} is kept in {paths.root}. Next:", soft_wrap=True)
    for command, what in hints.items():
        out.print(f"  {command:<{width}}  {what}", soft_wrap=True)
