"""`polar gateway`: a node that runs sessions for a rollout server, or several of them side by side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.event_loop import run_served
from polar.cli.logs import JsonOption, LevelOption, LogLevel, LogOptions

if TYPE_CHECKING:
    from polar.cli.service.processes import Program
    from polar.config import Config
    from polar.store.paths import RunPaths


def gateway(  # noqa: PLR0913
    ctx: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="Address of the rollout server.", show_default="polar.toml's server")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Nodes to run, a process each.")] = 1,
    config: Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")] = None,
    log_level: LevelOption = LogLevel.INFO,
    log_json: JsonOption = False,
    run_id: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run sessions for a rollout server, with the gateway and engine they need.

    Ctrl-C or SIGTERM hands running sessions back to the server, which gives them to other nodes.
    """
    from polar import config as configuration
    from polar.cli.service.processes import running, stop_requested
    from polar.store.paths import RunPaths, new_run_id

    logs = LogOptions(log_level, log_json)
    logs.apply()
    chosen = configuration.load(config)
    address = server or f"http://{chosen.server.host}:{chosen.server.port}"
    runs_dir: Path = ctx.obj or chosen.runs_dir
    configuration.read_secret("node-token")  # missing, it is said now and not by every worker

    async def supervise() -> None:
        stop = stop_requested()
        async with running(
            *(
                Worker(f"gateway {n}", address, runs_dir, config, log_options=logs).program()
                for n in range(1, workers + 1)
            )
        ):
            await stop.wait()

    if workers > 1:
        run_served(supervise())
    else:
        run_served(serve(chosen, address, RunPaths.create(runs_dir, run_id or f"gateway-{new_run_id()}")))


async def serve(config: Config, address: str, paths: RunPaths) -> None:
    """One node in this process, until it is told to stop."""
    from polar.cli.service.processes import stop_requested
    from polar.node import sweep

    stop, up = stop_requested(), asyncio.Event()
    await sweep(paths.root.parent)
    node = asyncio.create_task(_node(config, address, paths, up, stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([node, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not up.is_set():  # it may be in the middle of a download
        node.cancel()
    await asyncio.wait([node])
    stopped.cancel()
    if not node.cancelled():
        node.result()


async def _node(config: Config, address: str, paths: RunPaths, up: asyncio.Event, stop: asyncio.Event) -> None:
    import time

    from polar.config import read_secret
    from polar.node import Uplink, open_node, serve_server
    from polar.store.paths import RunRecord

    async with open_node(config, paths) as node:
        up.set()
        record = RunRecord(run_id=paths.run_id, config=config, started=time.time(), versions=node.versions)
        paths.write_record(record)
        async with Uplink(address, read_secret("node-token")) as uplink:
            await serve_server(node, uplink, stop)
        paths.write_record(record.model_copy(update={"finished": time.time()}))


@dataclass
class Worker:
    """A gateway node as a child process."""

    name: str
    address: str
    runs_dir: Path
    config: Path | None
    log: Path | None = None
    log_options: LogOptions = field(default_factory=LogOptions)
    run_id: str = field(default="", init=False)
    """Of the node that runs now; each start has a folder of its own."""

    def program(self) -> Program:
        from polar.cli.service.processes import Program

        return Program(self.name, self.arguments, self.log, self.clear)

    def arguments(self) -> list[str]:
        from polar.store.paths import new_run_id

        self.run_id = f"gateway-{new_run_id()}"
        config = ["--config", str(self.config)] if self.config else []
        return [
            *("--runs-dir", str(self.runs_dir)),
            *(
                "gateway",
                "--server",
                self.address,
                "--run-id",
                self.run_id,
                *config,
                *self.log_options.arguments(),
            ),
        ]

    async def clear(self) -> None:
        """Ends what a node that died has left running, and removes where it ran."""
        from polar.node import sweep

        await sweep(self.runs_dir)
