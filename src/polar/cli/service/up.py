"""`polar up`: the whole service on this machine, as child processes; with a task file, until that is done."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.logs import LevelOption, LogJsonOption, LogLevel, LogOptions
from polar.cli.options import ConfigOption, JsonOption, SamplesOption, again, checked_config

if TYPE_CHECKING:
    from polar.cli.runs.progress import RunProgress
    from polar.config import Config
    from polar.store.paths import RunPaths
    from polar.types import TaskRequest


def up(  # noqa: PLR0913
    ctx: typer.Context,
    tasks: Annotated[Path | None, typer.Argument(help="A task file to run, instead of waiting for tasks.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Gateway nodes, a process each.")] = 1,
    host: Annotated[
        str | None, typer.Option(help="Address that the server listens on.", show_default="polar.toml")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The server's port; 0: any free one.")] = None,
    config: ConfigOption = None,
    samples: SamplesOption = None,
    json: JsonOption = False,
    log_level: LevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
) -> None:
    """Start a rollout server and gateway nodes on this machine.

    Without TASKS it serves until Ctrl-C or SIGTERM, with exit code 0. With
    TASKS it runs them, stops everything and ends with the exit codes of
    `polar run`. 2: refused, such as a port in use.
    """
    from polar.runs.event_loop import run_apart, run_served

    chosen = checked_config(config)
    if host is not None:
        chosen = chosen.model_copy(update={"server": chosen.server.model_copy(update={"host": host})})
    runs_dir: Path = ctx.obj or chosen.runs_dir
    log_options = LogOptions(log_level, log_json)
    if tasks is None:
        log_options.apply()
        port = chosen.server.port if port is None else port
        run_served(_serve(Layout(chosen, config, runs_dir, port, workers, log_options=log_options)))
        return
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.run import end_run, origin_of
    from polar.cli.runs.summary import print_outcome
    from polar.registry import modules_of
    from polar.runs.running import tasks_of
    from polar.runs.task_sources import check_sources
    from polar.store.paths import RunPaths
    from polar.store.private import private_folder

    todo = tasks_of(tasks, samples)
    run_apart(check_sources(todo))
    paths = RunPaths.create(runs_dir)
    logs = paths.root / "logs"
    private_folder(logs)
    database = f"sqlite:///{paths.root.absolute() / 'server.db'}"
    modules = tuple(modules_of(todo))
    layout = Layout(chosen, config, paths.root / "nodes", port or 0, workers, database, logs, log_options, modules)
    progress = RunProgress(todo, quiet=json)
    with progress:
        interrupted = run_served(_run(layout, paths, todo, progress))
    print_outcome(progress.results, origin_of(paths), json=json)
    end_run(progress, paths, again(ctx.obj), interrupted=interrupted, json=json)


@dataclass(frozen=True)
class Layout:
    """Which processes the service has, and where they write."""

    config: Config
    config_file: Path | None
    runs_dir: Path
    """For the nodes."""
    port: int
    workers: int
    database: str | None = None
    """None: the config's."""
    logs: Path | None = None
    """Folder for their logs; None: our stderr."""
    log_options: LogOptions = field(default_factory=LogOptions)
    allowed_modules: tuple[str, ...] = ()
    """That tasks may name besides those of the config: the modules of the user's own tasks."""


@asynccontextmanager
async def service(layout: Layout) -> AsyncGenerator[str]:
    """Server and nodes, while the body runs; yields the server's address. The nodes stop first, because they hand
    their sessions back."""
    from polar.child_processes import running
    from polar.cli.service.server import ServerChild
    from polar.cluster.gateway_process import GatewayProcess, status_options
    from polar.config import is_loopback

    def log(name: str) -> Path | None:
        return layout.logs / f"{name}.log" if layout.logs else None

    with tempfile.TemporaryDirectory(prefix="polar-up-") as scratch:
        file, options = layout.config_file, layout.log_options
        address_file = Path(scratch, "address")
        host, modules = layout.config.server.host, layout.allowed_modules
        is_own = is_loopback(host)  # then only this machine's users reach the server
        child = ServerChild(
            layout.port, host, layout.database, file, address_file, log("server"), options, modules
        )
        async with running(child.program()):
            address = await child.address()
            workers = (
                GatewayProcess(
                    f"gateway {n}",
                    address,
                    layout.runs_dir,
                    file,
                    log(f"gateway-{n}"),
                    tuple(options.arguments()),
                    is_own,
                    modules,
                    layout.config.node.drain_s,
                    status=status_options(layout.config.node, n),
                )
                for n in range(1, layout.workers + 1)
            )
            async with running(*(worker.program() for worker in workers)):
                yield address


async def _serve(layout: Layout) -> None:
    from polar.child_processes import stop_requested
    from polar.cli.output import console
    from polar.cli.service.server import login_advice
    from polar.cli.service.up_tasks import nodes_are_ready
    from polar.client import PolarClient, ServerError
    from polar.runs.running import to_download
    from polar.token_files import config_dir

    stop, began = stop_requested(), time.time()
    async with service(layout) as address:
        out = console()
        out.print(f"rollout server  {address}  (tokens in {config_dir()})")
        out.print(f"dashboard       {address}/  ({login_advice()})")
        out.print(f"gateway nodes   {layout.workers}  (runs in {layout.runs_dir})")
        out.print(f"submit          polar submit TASKS --server {address}")
        out.print("Ctrl-C stops everything.")
        out.print(f"Starting the nodes and engine {layout.config.engine.name}{to_download(layout.config)}")
        with suppress(ServerError):  # the nodes' logs say why they do not come up
            async with PolarClient(address) as client:
                if await nodes_are_ready(client, layout.workers, stop, since=began):
                    out.print("Ready for tasks.")
        await stop.wait()


async def _run(layout: Layout, paths: RunPaths, tasks: Sequence[TaskRequest], progress: RunProgress) -> bool:
    """Whether it was interrupted."""

    from polar.child_processes import ChildCrashed, stop_requested
    from polar.cli.service.up_tasks import ServedTasks, nodes_are_ready
    from polar.client import PolarClient
    from polar.runs.resume import write_tasks
    from polar.runs.running import prepare_machine, to_download
    from polar.runs.state import held, record_of
    from polar.store.journal import Journal

    write_tasks(paths, tasks)
    stop, interrupted = stop_requested(), True
    with held(paths, record_of(paths, layout.config, tasks)) as run:
        async with await Journal.open(paths.journal) as journal:
            await prepare_machine(tasks, layout.config.permits, progress.phase)
            progress.phase(f"Starting server and engine {layout.config.engine.name}{to_download(layout.config)}")
            try:
                async with service(layout) as address, PolarClient(address) as client:
                    served = ServedTasks(client, tasks, progress, stop)
                    await nodes_are_ready(client, 1, stop)
                    run.begin({})
                    progress.phase("")
                    await served.run()
                    await served.keep(paths, journal)
                    interrupted = stop.is_set()
            except ChildCrashed:
                run.begin({})  # the logs in its folder may say why
                raise
            finally:
                if run.began:
                    run.end(len(await journal.session_ids()), interrupted=interrupted)
    return stop.is_set()
