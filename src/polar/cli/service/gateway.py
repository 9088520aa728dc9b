"""`polar gateway`: a node that runs sessions for a rollout server, or several of them side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.logs import LevelOption, LogJsonOption, LogLevel, LogOptions
from polar.cli.options import ConfigOption, checked_config

if TYPE_CHECKING:
    from polar.cluster.gateway_process import GatewayProcess
    from polar.config import Config
    from polar.store.paths import RunPaths

DrainOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="When stopped, let sessions end for this long before they are handed back.",
        show_default="polar.toml's node.drain_s, else 0",
    ),
]


MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Where /metrics, /healthz and /readyz answer; further workers take the following ports.",
        show_default="polar.toml, else nowhere",
    ),
]
MetricsHostOption = Annotated[
    str | None, typer.Option(help="Address that they listen on.", show_default="polar.toml, else 127.0.0.1")
]


AddressOption = Annotated[
    str | None,
    typer.Option(envvar="POLAR_SERVER", help="Address of the rollout server.", show_default="polar.toml's server"),
]


def gateway(  # noqa: PLR0913
    ctx: typer.Context,
    server: AddressOption = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Nodes to run, a process each.")] = 1,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    config: ConfigOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart a node that dies. With several --workers that is always so.")
    ] = False,
    drain: DrainOption = None,
    log_level: LevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
    run_id: Annotated[str | None, typer.Option(hidden=True)] = None,
    own_tasks: Annotated[bool, typer.Option(hidden=True)] = False,
    allow_module: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run sessions for a rollout server, with the gateway and engine they need.

    Ctrl-C or SIGTERM hands running sessions back to the server, which gives
    them to other nodes. With --drain they may end first; a second signal ends
    the wait.
    """
    from polar import config as configuration
    from polar.cluster.gateway_process import GatewayProcess, status_options
    from polar.runs.event_loop import run_served
    from polar.store.paths import RunPaths, new_run_id
    from polar.token_files import read_secret

    logs = LogOptions(log_level, log_json)
    logs.apply()
    chosen = checked_config(config)
    if not own_tasks:
        chosen = configuration.for_foreign_tasks(chosen)
    drain_s = chosen.node.drain_s if drain is None else drain
    options: dict[str, Any] = {"metrics_port": metrics_port, "metrics_host": metrics_host, "drain_s": drain_s}
    given = {name: value for name, value in options.items() if value is not None}
    given["allowed_modules"] = (*chosen.node.allowed_modules, *(allow_module or ()))
    chosen = chosen.model_copy(update={"node": chosen.node.model_copy(update=given)})
    address = server or f"{chosen.server.scheme}://{chosen.server.host}:{chosen.server.port}"
    runs_dir: Path = ctx.obj or chosen.runs_dir
    read_secret("node-token")  # if it is missing, fail here and not in every worker

    same: dict[str, Any] = {"log_options": tuple(logs.arguments()), "drain_s": drain_s}
    same["allowed_modules"] = tuple(allow_module or ())

    def node(number: int) -> GatewayProcess:
        status = status_options(chosen.node, number)
        return GatewayProcess(f"gateway {number}", address, runs_dir, config, status=status, **same)

    if workers > 1 or restart:
        run_served(_supervise([node(number) for number in range(1, workers + 1)]))
    else:
        run_served(serve(chosen, address, RunPaths.create(runs_dir, run_id or f"gateway-{new_run_id()}")))


async def _supervise(nodes: Sequence[GatewayProcess]) -> None:
    from polar.child_processes import running, stop_requested

    stop = stop_requested()
    async with running(*(node.program() for node in nodes)):
        await stop.wait()


async def serve(config: Config, address: str, paths: RunPaths) -> None:
    """One node in this process, until a stop is requested."""
    from polar.child_processes import stop_requested
    from polar.node import sweep

    up, hurry = asyncio.Event(), asyncio.Event()
    stop = stop_requested(hurry)
    await sweep(paths.root.parent)
    node = asyncio.create_task(_node(config, address, paths, up, (stop, hurry)))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([node, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not up.is_set():  # still starting, perhaps downloading
        node.cancel()
    await asyncio.wait([node])
    stopped.cancel()
    if not node.cancelled():
        node.result()


async def _node(
    config: Config,
    address: str,
    paths: RunPaths,
    up: asyncio.Event,
    stop_and_hurry: tuple[asyncio.Event, asyncio.Event],
) -> None:
    import time

    from polar.cli.service.tracing import session_tracer
    from polar.node import Uplink, open_node, serve_server
    from polar.runs.state import held
    from polar.store.paths import RunRecord
    from polar.token_files import read_secret

    record = RunRecord(run_id=paths.run_id, config=config, started=time.time(), versions={})
    with held(paths, record) as run:
        async with open_node(config, paths) as node:
            up.set()
            run.begin(node.versions)
            interrupted = True
            try:
                async with (
                    session_tracer(config.node.otlp_endpoint) as tracers,
                    Uplink(address, lambda: read_secret("node-token")) as uplink,
                ):
                    await serve_server(node, uplink, *stop_and_hurry, tracers)
                interrupted = False
            finally:
                run.end(interrupted=interrupted)
