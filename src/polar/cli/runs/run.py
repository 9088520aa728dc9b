"""`polar run`: the sessions of a task file on this machine, from start to traces."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.event_loop import run_served
from polar.cli.output import console, print_json

if TYPE_CHECKING:
    from polar.cli.runs.progress import RunProgress
    from polar.config import Config
    from polar.store.paths import RunPaths
    from polar.types import SessionResult, TaskRequest

EXIT_FAILED_SESSIONS = 1


def run(
    ctx: typer.Context,
    tasks: Annotated[Path, typer.Argument(help="A task file: .toml, .json or .jsonl.")],
    config: Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Samples of each task, whatever the file says.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run the sessions of a task file here and turn them into traces.

    Exit code 0: every session has its result, and none failed for a reason outside the policy. 1: some did.
    2: the input was refused. Ctrl-C cancels what runs, keeps what was captured and exits with 130.
    """
    from polar import config as configuration
    from polar.cli.runs.progress import RunProgress
    from polar.store.paths import RunPaths

    chosen = configuration.load(config)
    todo = tasks_of(tasks, samples)
    paths = RunPaths.create(ctx.obj or chosen.runs_dir)
    progress = RunProgress(sum(task.num_samples for task in todo), quiet=json)
    results: list[SessionResult] = []
    interrupted = False
    try:
        run_served(_run(chosen, paths, todo, progress, results))
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
    order = {task.task_id: position for position, task in enumerate(todo)}
    results.sort(key=lambda result: (order[result.task_id], result.index))
    print_outcome(paths, results, json=json)
    end(progress, paths, results, interrupted=interrupted)


def tasks_of(file: Path, samples: int | None) -> list[TaskRequest]:
    from polar.data.tasks import read_tasks
    from polar.types import TaskRequest

    tasks = read_tasks(file)
    if samples is None:
        return tasks
    return [TaskRequest.model_validate(task.model_dump() | {"num_samples": samples}) for task in tasks]


def print_outcome(paths: RunPaths, results: list[SessionResult], *, json: bool) -> None:
    from polar.cli.runs.summary import print_summary, summary_json

    if json:
        values = [result.model_dump(mode="json") for result in results]
        print_json({"run_id": paths.run_id, "path": str(paths.root), **summary_json(results), "results": values})
    elif results:
        print_summary(results)
        _print_next(paths, results)


def end(progress: RunProgress, paths: RunPaths, results: list[SessionResult], *, interrupted: bool) -> None:
    """The exit code says how the run went."""
    if interrupted:
        progress.console.print(f"interrupted; what was captured is kept in {paths.root}", style="yellow")
        raise typer.Exit(130)
    if any(result.failure is not None and not result.failure.agent for result in results):
        raise typer.Exit(EXIT_FAILED_SESSIONS)


async def _run(
    config: Config,
    paths: RunPaths,
    tasks: list[TaskRequest],
    progress: RunProgress,
    results: list[SessionResult],
) -> None:
    import time

    from polar.data.source import TaskFileSource
    from polar.node import open_node, sweep
    from polar.store.paths import RunRecord
    from polar.types import Trajectory

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)
        progress.finished(result)

    _stop_on_signals(progress)
    record = RunRecord(run_id=paths.run_id, config=config, tasks=len(tasks), started=time.time(), versions={})
    paths.write_record(record)
    await sweep(paths.root.parent)
    with progress.status("Installing the harness (downloads once)"):
        await ready_machine(tasks)
    status = progress.status("Starting the engine (downloads its weights once)")
    status.start()
    try:
        async with open_node(config, paths) as node:
            status.stop()
            record = record.model_copy(update={"versions": node.versions})
            paths.write_record(record)
            with progress:
                await node.serve(TaskFileSource(tasks, keep), (progress,))
    finally:
        status.stop()
        ended = {"finished": time.time(), "sessions": len(results)}
        paths.write_record(record.model_copy(update=ended))


def _stop_on_signals(progress: RunProgress) -> None:
    """Ctrl-C cancels the run, and so does a service manager's polite stop. A second one changes nothing: breaking
    the end of a run off would leave processes and folders behind."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None
    told: list[int] = []

    def stop() -> None:
        told.append(1)
        if len(told) == 1:
            main.cancel()
        elif len(told) == 2:
            progress.console.print("stopping: sessions are ended and what was captured is kept", style="yellow")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


async def ready_machine(tasks: list[TaskRequest]) -> None:
    """Before the first session: a runtime that is not here is said once, and no set-up time holds a download."""
    from polar import registry
    from polar.errors import ConfigError
    from polar.harnesses.programs.install import install

    for name in sorted({task.runtime.name for task in tasks}):
        if missing := await registry.find("runtime", name).lacking():
            raise ConfigError(f"runtime {name}: {missing}")
    packs = {pack for task in tasks for pack in registry.make("harness", task.harness).requirements()}
    await install(tuple(sorted(packs, key=lambda pack: pack.package)))


def _print_next(paths: RunPaths, results: list[SessionResult]) -> None:
    best = max(results, key=lambda result: (result.reward or 0, result.statistics.calls))
    polar = _as_called()
    hints = {
        f"{polar} ls {paths.run_id}": "all sessions",
        f"{polar} show {best.session_id}": "the walk of one session",
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
