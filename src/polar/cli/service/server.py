"""`polar server`: the rollout server, until a stop is requested."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.logs import LevelOption, LogJsonOption, LogLevel, LogOptions
from polar.cli.options import ConfigOption

if TYPE_CHECKING:
    from polar.child_processes import ChildProgram
    from polar.config import ModelConfig, ServerConfig
    from polar.types import Spec

POLL_S = 0.02


def server(  # noqa: PLR0913
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="polar.toml")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0: any free one.", show_default="polar.toml, else 8700")
    ] = None,
    database: Annotated[str | None, typer.Option(hidden=True)] = None,
    log_level: LevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
    address_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    allow_module: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Take tasks from trainers and lease their sessions to gateway nodes.

    The first start makes two tokens that only you can read: the control token
    is for trainers, the node token for gateway nodes. Exit code 0: Ctrl-C or
    SIGTERM ended it. 2: refused, such as a port in use.
    """
    from polar import config as configuration
    from polar.config import ServerConfig
    from polar.runs.event_loop import run_served

    LogOptions(log_level, log_json).apply()
    options = {"host": host, "port": port, "database": database}
    given = {name: value for name, value in options.items() if value is not None}
    loaded = configuration.load(config)
    chosen = ServerConfig.model_validate(loaded.server.model_dump() | given)
    modules = (*chosen.allowed_modules, *(allow_module or ()))
    run_served(_serve(chosen.model_copy(update={"allowed_modules": modules}), loaded.model, address_file))


async def _serve(config: ServerConfig, model: ModelConfig, address_file: Path | None) -> None:
    from polar.child_processes import stop_requested
    from polar.cli.output import console
    from polar.dashboard.live.pages import dashboard
    from polar.errors import PolarError
    from polar.server.serve import RolloutServer
    from polar.store.paths import write_whole
    from polar.token_files import config_dir, make_secret
    from polar.uvicorn_server import why_not

    stop = stop_requested()
    control_token, node_token = make_secret("control-token"), make_secret("node-token")
    metrics_token = make_secret("metrics-token") if config.metrics == "token" else ""
    pages = dashboard(_spelling(model))
    rollout = RolloutServer(
        config, control_token=control_token, node_token=node_token, metrics_token=metrics_token, pages=pages
    )
    try:
        await rollout.start()
    except OSError as error:
        where = f"{config.host}:{config.port}: {why_not(error)}"
        raise PolarError(f"cannot listen on {where}; choose another with --port (0: any free one)") from error
    try:
        if address_file is None:
            out = console()
            out.print(f"rollout server at {rollout.base_url}")
            out.print(f"its tokens are in {config_dir()}: control-token for trainers, node-token for nodes")
            out.print(f"dashboard at {rollout.base_url}/: {login_advice()}")
        else:  # the parent prints the address
            write_whole(address_file, rollout.base_url.encode())
        ended = asyncio.create_task(rollout.wait())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ended.done():
            ended.result()
        ended.cancel()
        if address_file is not None:  # `polar up` may have been killed: then nothing else would remove it
            address_file.unlink(missing_ok=True)
            with suppress(OSError):  # other files are not ours
                address_file.parent.rmdir()
    finally:
        await rollout.stop()


def _spelling(model: ModelConfig) -> Spec | None:
    """What can spell tokens for the dashboard, without a download."""
    from polar.store.weights import weights_to_download

    return model.renderer or (None if weights_to_download() else model.spelling)


def login_advice() -> str:
    """Where a person finds the token for the dashboard."""
    from polar.token_files import config_dir

    if os.environ.get("POLAR_CONTROL_TOKEN"):
        return "log in with the value of POLAR_CONTROL_TOKEN"
    return f"log in with the content of {config_dir() / 'control-token'}"


@dataclass
class ServerChild:
    """The server as a child process. It writes its address to `address_file`, whose folder it removes when it is
    stopped."""

    port: int
    host: str | None
    """None: the config's."""
    database: str | None
    config: Path | None
    address_file: Path
    log: Path | None
    log_options: LogOptions = field(default_factory=LogOptions)
    allowed_modules: tuple[str, ...] = ()
    """Besides those of the config."""

    def program(self) -> ChildProgram:
        from polar.child_processes import ChildProgram

        return ChildProgram("server", self.arguments, self.log)

    def arguments(self) -> list[str]:
        port = self._address().rpartition(":")[2] or str(self.port)  # a restarted server keeps its address
        database = ["--database", self.database] if self.database else []
        config = ["--config", str(self.config)] if self.config else []
        host = ["--host", self.host] if self.host else []
        allowed = [f"--allow-module={module}" for module in self.allowed_modules]
        options = [*host, *database, *config, *allowed, *self.log_options.arguments()]
        return ["server", "--port", port, *options, "--address-file", str(self.address_file)]

    async def address(self) -> str:
        """Waits until it listens."""
        while not (address := self._address()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return address

    def _address(self) -> str:
        return self.address_file.read_text() if self.address_file.exists() else ""
