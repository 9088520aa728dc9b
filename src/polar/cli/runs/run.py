"""`polar run`: the sessions of a task file on this machine, from start to traces."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import typer

from polar.cli.options import ConfigOption, JsonOption, SamplesOption, TasksArgument
from polar.cli.output import console

if TYPE_CHECKING:
    from polar.cli.runs.progress import RunProgress
    from polar.config import Config
    from polar.store.paths import RunPaths
    from polar.types import SessionResult, TaskRequest


def run(
    ctx: typer.Context,
    tasks: TasksArgument,
    config: ConfigOption = None,
    samples: SamplesOption = None,
    json: JsonOption = False,
) -> None:
    """Run the sessions of a task file here and turn them into traces.

    Exit code 0: no session failed through infrastructure (rewards may be low).
    1: some did. 2: the input was refused. 130: Ctrl-C, which cancels the running
    sessions and keeps what was captured.
    """
    from polar import config as configuration
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.summary import print_outcome
    from polar.runs.event_loop import run_apart
    from polar.runs.running import tasks_of
    from polar.runs.task_sources import check_sources
    from polar.store.paths import RunPaths

    chosen = configuration.load(config)
    todo = tasks_of(tasks, samples)
    run_apart(check_sources(todo))
    paths = RunPaths.create(ctx.obj or chosen.runs_dir)
    progress = RunProgress(todo, quiet=json)
    interrupted = run_watched(chosen, paths, todo, progress)
    print_outcome(progress.results, origin_of(paths), json=json)
    end_run(progress, paths, interrupted=interrupted, json=json)


def run_watched(config: Config, paths: RunPaths, tasks: list[TaskRequest], progress: RunProgress) -> bool:
    """All sessions of the tasks, with live progress. True: the user ended it early."""
    from polar.runs.event_loop import run_served

    try:
        with progress:
            run_served(_run(config, paths, tasks, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return True
    return False


def origin_of(paths: RunPaths) -> dict[str, str]:
    return {"run_id": paths.run_id, "path": str(paths.root)}


def end_run(progress: RunProgress, paths: RunPaths, *, interrupted: bool, json: bool) -> None:
    """Says what to do next, and exits with the code for how the run went."""
    if progress.results and not json:
        _print_next(paths, progress.results)
    progress.end(f"interrupted; what was captured is kept in {paths.root}" if interrupted else "")


async def _run(config: Config, paths: RunPaths, tasks: list[TaskRequest], progress: RunProgress) -> None:
    from polar.runs.running import run_tasks

    _stop_on_signals(progress)
    await run_tasks(config, paths, tasks, progress)


def _stop_on_signals(progress: RunProgress) -> None:
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
            progress.console.print("stopping: sessions are ended and what was captured is kept", style="yellow")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _print_next(paths: RunPaths, results: list[SessionResult]) -> None:
    best = max(results, key=lambda result: (result.reward or 0, result.statistics.calls))
    polar = _as_called()
    hints = {
        f"{polar} ls {paths.run_id}": "all sessions",
        f"{polar} show {best.session_id}": "one session, call by call",
        f"{polar} show {best.session_id} --tokens": "its traces, trainable tokens marked",
        f"{polar} replay {best.session_id} --builder per_request": "the same calls, built in another way",
    }
    width = max(map(len, hints))
    out = console()
    out.print(f"\nrun {paths.run_id} is kept in {paths.root}. Next:")
    for command, what in hints.items():
        out.print(f"  {command:<{width}}  {what}")


def _as_called() -> str:
    """`polar` where the shell finds it, else the path it was called by."""
    import shutil
    import sys

    return "polar" if shutil.which("polar") else sys.argv[0]
