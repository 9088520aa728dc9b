"""`polar gateway`: a node that runs sessions for a rollout server, or several of them side by side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.logs import LevelOption, LogJsonOption, LogLevel, LogOptions
from polar.cli.options import ConfigOption, checked_config

if TYPE_CHECKING:
    from polar.cli.service.processes import ChildProgram
    from polar.config import Config
    from polar.store.paths import RunPaths


def gateway(  # noqa: PLR0913
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            envvar="POLAR_SERVER", help="Address of the rollout server.", show_default="polar.toml's server"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Nodes to run, a process each.")] = 1,
    config: ConfigOption = None,
    log_level: LevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
    run_id: Annotated[str | None, typer.Option(hidden=True)] = None,
    own_tasks: Annotated[bool, typer.Option(hidden=True)] = False,
    allow_module: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run sessions for a rollout server, with the gateway and engine they need.

    Ctrl-C or SIGTERM hands running sessions back to the server, which gives
    them to other nodes.
    """
    from polar import config as configuration
    from polar.cli.service.processes import running, stop_requested
    from polar.runs.event_loop import run_served
    from polar.store.paths import RunPaths, new_run_id

    logs = LogOptions(log_level, log_json)
    logs.apply()
    chosen = checked_config(config)
    if not own_tasks:
        chosen = configuration.for_foreign_tasks(chosen)
    modules = (*chosen.node.allowed_modules, *(allow_module or ()))
    chosen = chosen.model_copy(update={"node": chosen.node.model_copy(update={"allowed_modules": modules})})
    address = server or f"http://{chosen.server.host}:{chosen.server.port}"
    runs_dir: Path = ctx.obj or chosen.runs_dir
    configuration.read_secret("node-token")  # if it is missing, fail here and not in every worker

    async def supervise() -> None:
        stop, numbers = stop_requested(), range(1, workers + 1)
        more = tuple(allow_module or ())
        nodes = (
            Worker(f"gateway {n}", address, runs_dir, config, log_options=logs, allowed_modules=more)
            for n in numbers
        )
        async with running(*(node.program() for node in nodes)):
            await stop.wait()

    if workers > 1:
        run_served(supervise())
    else:
        run_served(serve(chosen, address, RunPaths.create(runs_dir, run_id or f"gateway-{new_run_id()}")))


async def serve(config: Config, address: str, paths: RunPaths) -> None:
    """One node in this process, until a stop is requested."""
    from polar.cli.service.processes import stop_requested
    from polar.node import sweep

    stop, up = stop_requested(), asyncio.Event()
    await sweep(paths.root.parent)
    node = asyncio.create_task(_node(config, address, paths, up, stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([node, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not up.is_set():  # still starting, perhaps downloading
        node.cancel()
    await asyncio.wait([node])
    stopped.cancel()
    if not node.cancelled():
        node.result()


async def _node(config: Config, address: str, paths: RunPaths, up: asyncio.Event, stop: asyncio.Event) -> None:
    import time

    from polar.config import read_secret
    from polar.node import Uplink, open_node, serve_server
    from polar.runs.state import held
    from polar.store.paths import RunRecord

    record = RunRecord(run_id=paths.run_id, config=config, started=time.time(), versions={})
    with held(paths, record) as run:
        async with open_node(config, paths) as node:
            up.set()
            run.begin(node.versions)
            interrupted = True
            try:
                async with Uplink(address, read_secret("node-token")) as uplink:
                    await serve_server(node, uplink, stop)
                interrupted = False
            finally:
                run.end(interrupted=interrupted)


@dataclass
class Worker:
    """A gateway node as a child process."""

    name: str
    address: str
    runs_dir: Path
    config: Path | None
    log: Path | None = None
    log_options: LogOptions = field(default_factory=LogOptions)
    own_tasks: bool = False
    """Its tasks are those of this machine's user."""
    allowed_modules: tuple[str, ...] = ()
    """Besides those of the config."""
    run_id: str = field(default="", init=False)
    """Of the current process; each start has a new run folder."""

    def program(self) -> ChildProgram:
        from polar.cli.service.processes import ChildProgram

        return ChildProgram(self.name, self.arguments, self.log, self.clear)

    def arguments(self) -> list[str]:
        from polar.store.paths import new_run_id

        self.run_id = f"gateway-{new_run_id()}"
        config = ["--config", str(self.config)] if self.config else []
        start = ["--runs-dir", str(self.runs_dir), "gateway", "--server", self.address, "--run-id", self.run_id]
        own = ["--own-tasks"] if self.own_tasks else []
        allowed = [f"--allow-module={module}" for module in self.allowed_modules]
        return [*start, *own, *config, *allowed, *self.log_options.arguments()]

    async def clear(self) -> None:
        """Ends the processes that a dead node has left running, and removes their folders."""
        from polar.node import sweep

        await sweep(self.runs_dir)
