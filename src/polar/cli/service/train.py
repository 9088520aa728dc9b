"""`polar train`: the reference trainer, with a rollout service of its own or a running one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import ConfigOption, JsonOption, ServerOption

if TYPE_CHECKING:
    from polar.config import Config
    from polar.trainers.grpo.config import TrainConfig
    from polar.types import TrainingPoint


def train(  # noqa: PLR0913
    training: Annotated[Path, typer.Argument(help="The training config, a .toml file: docs/training.md.")],
    config: ConfigOption = None,
    server: ServerOption = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Gateway nodes to start, a process each.")] = 1,
    model: Annotated[str | None, typer.Option(help="The model to train, instead of the config's.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the run, instead of the config's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Stop after the first step that ends later than this.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the config's.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a model with GRPO through an unmodified harness.

    Needs an engine that takes weights: torch, vllm or sglang. Without --server
    it starts a rollout server and nodes with the engine of polar.toml. Ctrl-C
    saves a checkpoint; --resume continues, and no task is skipped.
    """
    from polar import config as configuration
    from polar.runs.event_loop import run_served
    from polar.trainers.grpo.config import load_train_config

    chosen = load_train_config(training)
    changes = {"model": model, "output": output, "seed": seed}
    chosen = chosen.model_copy(update={name: value for name, value in changes.items() if value is not None})
    if minutes is not None:
        chosen = chosen.model_copy(update={"schedule": chosen.schedule.model_copy(update={"minutes": minutes})})
    place = Place(configuration.load(config), config, server, workers, training.absolute().parent)
    run_served(_train(chosen, place, TrainProgress(json=json), resume=resume))


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


class TrainProgress:
    """A line for each step and each evaluation; with `json` as JSON."""

    def __init__(self, *, json: bool) -> None:
        from polar.cli.output import console

        self._json = json
        self._out = console()

    def phase(self, text: str) -> None:
        from polar.cli.output import error_console

        error_console(quiet=self._json).print(text, style="dim")

    def point(self, point: TrainingPoint) -> None:
        if self._json:
            typer.echo(point.model_dump_json())
            return
        self._out.print(_evaluation_line(point) if point.phase == "eval" else _step_line(point))


def _step_line(point: TrainingPoint) -> str:
    v = point.metrics
    return (
        f"step {point.step:4}  reward {v['reward']:.3f}  solved {v['solved']:.3f}  sessions {v['sessions']:.0f}"
        f"  no contrast {v['no_contrast']:.0%}  tokens {v['targets']:.0f}  gap {v['gap']:.3f}"
        f"  age {v['age']:.1f}  wait {v['wait_s']:.1f} s  train {v['learn_s']:.1f} s  push {v['push_s']:.1f} s"
    )


def _evaluation_line(point: TrainingPoint) -> str:
    v = point.metrics
    families = "  ".join(
        f"{name.removeprefix('pass@1/')} {value:.2f}" for name, value in v.items() if name.startswith("pass@1/")
    )
    return (
        f"step {point.step:4}  held out: pass@1 {v['pass@1']:.3f}"
        f" ({v['pass@1_low']:.3f} to {v['pass@1_high']:.3f}) of {v['sessions']:.0f} sessions  {families}"
    )


async def _train(config: TrainConfig, place: Place, progress: TrainProgress, *, resume: bool) -> None:
    try:
        from polar.trainers.grpo.start import Surroundings, check_run
        from polar.trainers.grpo.start import train as start
    except ImportError as error:
        from polar.errors import ConfigError

        raise ConfigError(
            f"`polar train` needs more packages ({error}): pip install 'polar-rollout[train]'"
        ) from error
    from polar.cli.service.train_engine import training_engine, write_config
    from polar.client import PolarClient
    from polar.engines.torch.default_model import default_model

    check_run(config, place.config.engine, place.folder, resume=resume)
    if not config.model:
        config = config.model_copy(update={"model": str(await default_model())})
    config.output.mkdir(parents=True, exist_ok=True)
    progress.phase("Starting the engine")
    async with training_engine(place.config, config.model) as service_config:
        place = replace(
            place, config=service_config, config_file=write_config(service_config, config.output / "polar.toml")
        )
        async with _service(config, place, progress) as address, PolarClient(address) as client:
            progress.phase("Loading the model")
            around = Surroundings(client, service_config.engine, place.folder, resume, progress.point)
            state = await start(config, around)
    progress.phase(f"{state.step} steps, {state.minutes:.1f} minutes; checkpoints and curves in {config.output}")


@asynccontextmanager
async def _service(config: TrainConfig, place: Place, progress: TrainProgress) -> AsyncGenerator[str]:
    """The address of the rollout server, with at least one node."""
    import asyncio
    import os

    from polar.cli.service.remote import check_server
    from polar.cli.service.up import Layout, service
    from polar.client import PolarClient
    from polar.registry import ANY_MODULE
    from polar.store.private import private_folder

    if place.server is not None:
        await check_server(place.server)
        yield place.server
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(place.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    )  # for evaluators and harnesses beside the config, in server and nodes
    logs = config.output / "logs"
    private_folder(logs)
    database = f"sqlite:///{(config.output / 'server.db').absolute()}"
    layout = Layout(
        place.config,
        place.config_file,
        config.output / "nodes",
        0,
        place.workers,
        database=database,
        logs=logs,
        allowed_modules=(ANY_MODULE,),  # the training config makes the tasks
    )
    progress.phase(f"Starting the rollout service; its logs are in {logs}")
    async with service(layout) as address:
        async with PolarClient(address) as client:
            while not await client.nodes():  # noqa: ASYNC110
                await asyncio.sleep(0.25)
        yield address
