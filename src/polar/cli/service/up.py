"""`polar up`: the whole service on this machine, as child processes; with a task file, until that is done."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.event_loop import run_served
from polar.cli.logs import JsonOption, LevelOption, LogLevel, LogOptions

if TYPE_CHECKING:
    from polar.cli.runs.progress import RunProgress
    from polar.cli.service.processes import Program
    from polar.config import Config
    from polar.store.paths import RunPaths
    from polar.types import SessionResult, TaskRequest


def up(  # noqa: PLR0913
    ctx: typer.Context,
    tasks: Annotated[Path | None, typer.Argument(help="A task file to run, instead of waiting for tasks.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Gateway nodes, a process each.")] = 1,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The server's port; 0: any free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Samples of each task, whatever the file says.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    log_level: LevelOption = LogLevel.INFO,
    log_json: JsonOption = False,
) -> None:
    """Start a rollout server with its gateway nodes here.

    Without TASKS it serves until Ctrl-C. With TASKS it runs them, stops everything and ends like `polar run`.
    """
    from polar import config as configuration

    chosen = configuration.load(config)
    runs_dir: Path = ctx.obj or chosen.runs_dir
    log_options = LogOptions(log_level, log_json)
    if tasks is None:
        log_options.apply()
        port = chosen.server.port if port is None else port
        run_served(_serve(Layout(chosen, config, runs_dir, port, workers, log_options=log_options)))
        return
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.run import end, print_outcome, tasks_of
    from polar.store.paths import RunPaths

    todo = tasks_of(tasks, samples)
    paths = RunPaths.create(runs_dir)
    logs = paths.root / "logs"
    logs.mkdir()
    database = f"sqlite:///{paths.root.absolute() / 'server.db'}"
    layout = Layout(chosen, config, paths.root / "nodes", port or 0, workers, database, logs, log_options)
    progress = RunProgress(sum(task.num_samples for task in todo), quiet=json)
    interrupted, results = run_served(_run(layout, paths, todo, progress))
    print_outcome(paths, results, json=json)
    end(progress, paths, results, interrupted=interrupted)


@dataclass(frozen=True)
class Layout:
    """What stands where on this machine."""

    config: Config
    config_file: Path | None
    runs_dir: Path
    """Of the nodes."""
    port: int
    workers: int
    database: str | None = None
    """None: the config's."""
    logs: Path | None = None
    """Where the processes write; None: to our stderr."""
    log_options: LogOptions = field(default_factory=LogOptions)


@asynccontextmanager
async def service(layout: Layout) -> AsyncGenerator[str]:
    """Server and nodes, until the body ends; gives the server's address. The nodes stop first: they hand their
    sessions back."""
    from polar.cli.service.gateway import Worker
    from polar.cli.service.processes import running
    from polar.cli.service.server import ServerChild

    def log(name: str) -> Path | None:
        return layout.logs / f"{name}.log" if layout.logs else None

    with tempfile.TemporaryDirectory(prefix="polar-up-") as scratch:
        child = ServerChild(
            layout.port,
            layout.database,
            layout.config_file,
            Path(scratch, "address"),
            log("server"),
            layout.log_options,
        )
        async with running(child.program()):
            address = await child.address()
            nodes: list[Program] = [
                Worker(
                    f"gateway {n}",
                    address,
                    layout.runs_dir,
                    layout.config_file,
                    log(f"gateway-{n}"),
                    layout.log_options,
                ).program()
                for n in range(1, layout.workers + 1)
            ]
            async with running(*nodes):
                yield address


async def _serve(layout: Layout) -> None:
    from polar.cli.output import console
    from polar.cli.service.processes import stop_requested
    from polar.config import config_dir

    stop = stop_requested()
    async with service(layout) as address:
        out = console()
        out.print(f"rollout server  {address}  (tokens in {config_dir()})")
        out.print(f"gateway nodes   {layout.workers}  (runs in {layout.runs_dir})")
        out.print(f"submit          polar submit TASKS --server {address}")
        out.print("Ctrl-C stops everything.")
        await stop.wait()


async def _run(
    layout: Layout, paths: RunPaths, tasks: list[TaskRequest], progress: RunProgress
) -> tuple[bool, list[SessionResult]]:
    """Whether it was interrupted, and the results in the order of the file."""
    import time

    from polar.cli.runs.run import ready_machine
    from polar.cli.service.processes import stop_requested
    from polar.cli.service.up_tasks import TasksUnderWay
    from polar.client import PolarClient
    from polar.store.journal import Journal
    from polar.store.paths import RunRecord

    record = RunRecord(
        run_id=paths.run_id, config=layout.config, tasks=len(tasks), started=time.time(), versions={}
    )
    paths.write_record(record)
    stop = stop_requested()
    async with await Journal.open(paths.journal) as journal:
        with progress.status("Installing the harness (downloads once)"):
            await ready_machine(tasks)
        status = progress.status("Starting server and engine (downloads its weights once)")
        status.start()
        try:
            async with service(layout) as address, PolarClient(address) as client:
                following = TasksUnderWay(client, tasks, progress, stop)
                await following.wait_for_nodes()
                status.stop()
                with progress:
                    await following.run()
                await following.keep(paths, journal)
        finally:
            status.stop()
            ended = {"finished": time.time(), "sessions": len(await journal.session_ids())}
            paths.write_record(record.model_copy(update=ended))
    return stop.is_set(), following.in_order()
