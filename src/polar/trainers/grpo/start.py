"""Starts a training run, or continues one: loads the model and puts the parts of the loop together."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from polar.client import PolarClient
from polar.errors import ConfigError
from polar.trainers.grpo.checkpoints import Checkpoints, TrainState, load_learner_state, read_state
from polar.trainers.grpo.config import TrainConfig
from polar.trainers.grpo.held_out import HeldOut
from polar.trainers.grpo.learner import Learner
from polar.trainers.grpo.loop import Training, TrainParts
from polar.trainers.grpo.model.policy_model import PolicyModel
from polar.trainers.grpo.plots import plot_run
from polar.trainers.grpo.records import Records, read_points
from polar.trainers.grpo.task_stream import TaskStream
from polar.trainers.weights import (
    WeightOptions,
    WeightProbe,
    WeightUpdates,
    check_takes_weights,
    weight_target,
)
from polar.trainers.weights.probe import probe_ids
from polar.types import Spec, TrainingPoint

LOCK = ".lock"
CONFIG_FILE = "train.json"
"""The config that the run was last started with."""


@dataclass(frozen=True)
class Surroundings:
    """Where a run takes place."""

    client: PolarClient
    engine: Spec
    """As the nodes have it: its options say where the weights go."""
    folder: Path
    """Of the config file: task files and modules are found beside it."""
    resume: bool = False
    on_point: Callable[[TrainingPoint], None] = lambda _: None
    on_progress: Callable[[str], None] = lambda _: None
    """Gets a line on what the run is doing, again and again."""


def check_output(config: TrainConfig, *, resume: bool) -> Path | None:
    """The checkpoint to continue from. Raises `ConfigError` for a new run in a folder that holds one."""
    latest = Checkpoints(config.output, config.schedule.keep).latest()
    if latest is not None and not resume:
        raise ConfigError(
            f"{config.output} holds a training run at {latest.name}: continue it with --resume, or give another "
            "folder with --output"
        )
    if latest is None and resume:
        raise ConfigError(f"{config.output} holds no checkpoint to resume from; start without --resume")
    return latest


def check_run(config: TrainConfig, engine: Spec, folder: Path, *, resume: bool) -> None:
    """All that can be found before anything is started. Raises `ConfigError`."""
    checkpoint = check_output(config, resume=resume)
    check_takes_weights(engine, WeightOptions(transfer=config.rollout.transfer))
    tasks = TaskStream(config.tasks.train, folder, config.seed, config.tasks.fields)
    tasks.task(0, "first", 1)
    if checkpoint is not None:
        check_tasks_of(read_state(checkpoint), tasks, checkpoint)
    if config.tasks.evaluate is not None:
        _evaluation_tasks(config.tasks.evaluate, config, folder).task(0, "first", 1)


def check_tasks_of(state: TrainState, tasks: TaskStream, checkpoint: Path) -> None:
    """Raises `ConfigError` if the numbers of the run's tasks would be other tasks now."""
    if state.tasks and state.tasks != tasks.identity:
        raise ConfigError(
            f"this run trains on {state.tasks}, and now it would be {tasks.identity}: tasks would be skipped or "
            "trained on twice. Resume with the same tasks and seed, or begin a new run with "
            f"--output FOLDER --model {checkpoint}"
        )


@contextmanager
def held_output(output: Path) -> Generator[None]:
    """Keeps a second trainer out of the folder: both would write the same files and use the same service."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        lock = (output / LOCK).open("w")
    except OSError as error:
        raise ConfigError(
            f"the output folder {output} cannot be written to: {error.strerror}; name another with --output"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another `polar train` works in {output}: wait until it has ended, or give another --output"
            ) from error
        yield


async def train(config: TrainConfig, around: Surroundings) -> TrainState:
    """Until the run is done or its time is up. Afterwards `config.output` has checkpoints, metrics and a plot."""
    checkpoint = check_output(config, resume=around.resume)
    tasks = TaskStream(config.tasks.train, around.folder, config.seed, config.tasks.fields)
    torch.manual_seed(config.seed)
    compute = config.compute
    model = await asyncio.to_thread(PolicyModel, str(checkpoint or config.model), compute.device, compute.dtype)
    learner = Learner(config, model)
    state = TrainState(run_id=f"train-{time.strftime('%m%d-%H%M%S')}-{config.seed}")
    if checkpoint is not None:
        state = read_state(checkpoint)
        check_tasks_of(state, tasks, checkpoint)
        load_learner_state(learner, checkpoint)
    state = state.model_copy(update={"tasks": tasks.identity})
    records = Records(config.output, around.on_point)
    (config.output / CONFIG_FILE).write_text(config.model_dump_json(indent=1))
    dtype = compute.engine_dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    options = WeightOptions(transfer=config.rollout.transfer, dtype=dtype)
    target = weight_target(around.engine, model.folder, options)
    probe = WeightProbe(target, probe_ids(model.vocabulary_size), model.score)
    updates = WeightUpdates(around.client, target, config.rollout.update, probe)
    parts = TrainParts(
        client=around.client,
        updates=updates,
        learner=learner,
        tasks=tasks,
        held_out=_held_out(config, around),
        records=records,
        checkpoints=Checkpoints(config.output, config.schedule.keep),
        on_progress=around.on_progress,
    )
    try:
        await updates.begin(model.weights())
        return await Training(config, parts, state).run()
    finally:
        await target.close()
        records.close()
        with suppress(ImportError, OSError):  # a plot is not worth an error; matplotlib comes with the extra
            plot_run(read_points(config.output), config.output / "curves.png", state.run_id)


def _held_out(config: TrainConfig, around: Surroundings) -> HeldOut | None:
    if config.tasks.evaluate is None:
        return None
    stream = _evaluation_tasks(config.tasks.evaluate, config, around.folder)
    return HeldOut(around.client, stream, config.tasks, config.output)


def _evaluation_tasks(source: str, config: TrainConfig, folder: Path) -> TaskStream:
    """The same for all seeds, so that their rates can be compared."""
    return TaskStream(source, folder, fields=config.tasks.fields)
