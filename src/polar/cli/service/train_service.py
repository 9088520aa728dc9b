"""The engine that `polar train` pushes weights into, and the rollout service that it samples with."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polar.cli.service.up import Layout
from polar.toml.text import toml_table

if TYPE_CHECKING:
    from polar.cli.service.train_progress import TrainProgress
    from polar.config import Config
    from polar.types import Spec

RELEASE_S = 10.0


@dataclass(frozen=True)
class Place:
    """The service that samples."""

    config: Config
    config_file: Path | None
    server: str | None
    """None: start one."""
    workers: int
    folder: Path
    """Of the training config."""


def check_reachable(engine: Spec, server: str | None) -> None:
    """Raises `ConfigError` if no trainer could push into this engine. One that is started here gets an address;
    the nodes of a running service would not sample from it."""
    from polar import registry
    from polar.engines.base import Shareable
    from polar.errors import ConfigError
    from polar.trainers.weights import check_has_address

    if server is None and isinstance(registry.make("engine", engine), Shareable):
        return
    try:
        check_has_address(engine)
    except ConfigError as error:
        if server is None:
            raise
        raise ConfigError(f"with --server the engine is the one that the service's nodes use: {error}") from error


@asynccontextmanager
async def training_engine(config: Config, model: str, server: str | None = None) -> AsyncGenerator[Config]:
    """The config with an engine that trainer and nodes share, while the body runs. One that nodes would start for
    themselves is started here, once, unless a running service samples."""
    from polar import registry
    from polar.engines.base import Shareable

    engine = registry.make("engine", config.engine)
    if server is not None or not isinstance(engine, Shareable):
        yield config
        return
    async with engine.shared(model) as options:
        yield config.model_copy(update={"engine": config.engine.model_copy(update={"options": options})})


async def release_held(engine: Spec, model: str) -> None:
    """An engine that a trainer left held, because it was killed within an update, samples nothing: no node that is
    started would get ready. One that does not answer is for the nodes to report."""
    from polar.errors import PolarError
    from polar.trainers.grpo.model.policy_model import local_folder
    from polar.trainers.weights import weight_target

    with suppress(PolarError, TimeoutError):
        target = weight_target(engine, await asyncio.to_thread(local_folder, model))
        try:
            async with asyncio.timeout(RELEASE_S):
                await target.release()
        finally:
            await target.close()


def write_config(config: Config, path: Path) -> Path:
    """As a polar.toml, for child processes."""
    values = config.model_dump(mode="json", exclude_none=True)
    path.write_text(toml_table(values))
    return path


@asynccontextmanager
async def training_service(place: Place, output: Path, progress: TrainProgress) -> AsyncGenerator[str]:
    """The address of the rollout server, with at least one node."""
    from polar.cli.service.remote import check_server
    from polar.cli.service.up import service
    from polar.cli.service.up_tasks import nodes_are_ready
    from polar.client import PolarClient

    if place.server is not None:
        await check_server(place.server)
        yield place.server
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(place.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    )  # for evaluators and harnesses beside the config, in server and nodes
    logs, began = output / "logs", time.time()
    progress.phase(f"Starting the rollout service; its logs are in {logs}")
    async with service(_layout(place, output, logs)) as address:
        async with PolarClient(address) as client:
            progress.doing("waiting for the first node")
            await nodes_are_ready(client, 1, asyncio.Event(), since=began)
        yield address


def _layout(place: Place, output: Path, logs: Path) -> Layout:
    from polar.registry import ANY_MODULE
    from polar.store.private import private_folder

    private_folder(logs)
    return Layout(
        place.config,
        place.config_file,
        output / "nodes",
        0,
        place.workers,
        database=f"sqlite:///{(output / 'server.db').absolute()}",
        logs=logs,
        allowed_modules=(ANY_MODULE,),  # the training config makes the tasks
    )
