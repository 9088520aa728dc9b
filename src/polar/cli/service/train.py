"""`polar train`: the reference trainer, with a rollout service of its own or a running one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import ConfigOption, JsonOption, ServerOption, again

if TYPE_CHECKING:
    from polar.cli.service.train_progress import TrainProgress
    from polar.cli.service.train_service import Place
    from polar.cli.service.train_stop import StopSignals
    from polar.trainers.grpo.checkpoints import TrainState
    from polar.trainers.grpo.config import TrainConfig


def train(  # noqa: PLR0913
    ctx: typer.Context,
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
    and SIGTERM save a checkpoint and end with exit code 130 and 143; --resume
    continues, and no task is skipped.
    """
    from polar import config as configuration
    from polar.cli.service.train_progress import TrainProgress
    from polar.cli.service.train_service import Place
    from polar.cli.service.train_stop import StopSignals, where_it_stands
    from polar.errors import PolarError
    from polar.runs.event_loop import run_served
    from polar.trainers.grpo.config import load_train_config

    chosen = load_train_config(training)
    changes = {"model": model, "output": output, "seed": seed}
    chosen = chosen.model_copy(update={name: value for name, value in changes.items() if value is not None})
    if minutes is not None:
        chosen = chosen.model_copy(update={"schedule": chosen.schedule.model_copy(update={"minutes": minutes})})
    place = Place(configuration.load(config), config, server, workers, training.absolute().parent)
    with TrainProgress(json=json) as progress:
        stop = StopSignals(progress.warn)
        try:
            run_served(_train(chosen, place, progress, stop, resume=resume))
        except (asyncio.CancelledError, KeyboardInterrupt, PolarError) as error:
            if isinstance(error, PolarError):  # a stop may end other processes, too, such as the server
                if not stop.came:
                    raise
                progress.warn(str(error))
            progress.warn(f"{stop.name}: {where_it_stands(chosen.output, again(None)(resume_command(ctx)))}")
            raise typer.Exit(stop.exit_code) from None


def resume_command(ctx: typer.Context) -> str:
    """This command as it was called, with --resume."""
    import shlex

    words = ["train", str(ctx.params["training"])]
    for option in ("config", "server", "workers", "model", "output", "minutes", "seed"):
        source = ctx.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            words += [f"--{option}", str(ctx.params[option])]
    words += ["--json"] if ctx.params["json"] else []
    return shlex.join([*words, "--resume"])


async def _train(
    config: TrainConfig, place: Place, progress: TrainProgress, stop: StopSignals, *, resume: bool
) -> None:
    stop.catch()
    try:
        from polar.trainers.grpo.start import Surroundings, held_output
        from polar.trainers.grpo.start import train as start
    except ImportError as error:
        from polar.errors import ConfigError

        raise ConfigError(
            f"`polar train` needs more packages ({error}): pip install 'polar-rollout[train]'"
        ) from error
    from polar.cli.service.train_service import release_held, training_engine, training_service, write_config
    from polar.client import PolarClient

    config = await _checked(config, place, progress, resume=resume)
    with held_output(config.output):
        progress.phase("Using the engine of the service" if place.server else "Starting the engine")
        async with (
            progress.heartbeat(),
            training_engine(place.config, config.model, place.server) as service_config,
        ):
            written = write_config(service_config, config.output / "polar.toml")
            place = replace(place, config=service_config, config_file=written)
            if place.server is None:
                await release_held(service_config.engine, config.model)
            async with training_service(place, config.output, progress) as address, PolarClient(address) as client:
                progress.phase("Loading the model")
                around = Surroundings(
                    client, service_config.engine, place.folder, resume, progress.point, on_progress=progress.doing
                )
                state = await start(config, around)
    progress.phase(ending(state, config))


async def _checked(config: TrainConfig, place: Place, progress: TrainProgress, *, resume: bool) -> TrainConfig:
    """The config with a model that can be trained here. Whatever is wrong is found before anything is started."""
    from polar.cli.service.train_service import check_reachable
    from polar.engines.torch.default_model import default_model
    from polar.trainers.grpo.model.policy_model import check_policy, compute_device
    from polar.trainers.grpo.start import check_output, check_run

    check_run(config, place.config.engine, place.folder, resume=resume)
    check_reachable(place.config.engine, place.server)
    compute_device(config.compute.device)
    if not config.model:
        config = config.model_copy(update={"model": str(await default_model())})
    progress.doing("looking at the model")
    trained = str(check_output(config, resume=resume) or config.model)
    await asyncio.to_thread(check_policy, trained, config.compute.max_tokens)
    return config


def ending(state: TrainState, config: TrainConfig) -> str:
    if not state.step:
        return (
            f"no step was made: the time ({config.schedule.minutes:g} minutes) was up before the first one; give "
            "more --minutes, or set schedule.evaluate_first to false"
        )
    return f"{state.step} steps, {state.minutes:.1f} minutes; checkpoints and curves in {config.output}"
