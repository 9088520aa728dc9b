"""Checkpoints of a training run: weights, optimizer and what has been trained on."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError

from polar.errors import PolarError
from polar.trainers.grpo.learner import Learner
from polar.types import Strict

STATE_FILE = "state.json"
OPTIMIZER_FILE = "optimizer.pt"


class TrainState(Strict):
    """Where a run stands."""

    run_id: str
    step: int = 0
    """Steps that are done; also the version of the weights."""
    trained: tuple[int, ...] = ()
    """Numbers of the tasks that were trained on, without those below `trained_below`."""
    trained_below: int = 0
    starts: int = 0
    """How often the run was started: sessions of a start that ended early never mix with those of the next."""
    minutes: float = 0.0
    """Spent on training so far."""
    evaluated: int | None = None
    """The step that was evaluated last."""
    tasks: str = ""
    """Identity of the training tasks: with others, the numbers above would be other tasks. Empty: not known."""

    def with_trained(self, numbers: list[int]) -> TrainState:
        """Written short: a run of thousands of steps has trained on all of the first tasks."""
        known = set(numbers)
        below = 0
        while below in known:
            below += 1
        rest = tuple(number for number in numbers if number >= below)
        return self.model_copy(update={"trained": rest, "trained_below": below})

    @property
    def all_trained(self) -> list[int]:
        return [*range(self.trained_below), *self.trained]


class Checkpoints:
    """Folders `step-00010` beneath the run's output. One without a state file was not finished, and is ignored."""

    def __init__(self, output: Path, keep: int) -> None:
        self._folder = output / "checkpoints"
        self._keep = keep

    def latest(self) -> Path | None:
        found = self._complete()
        return found[-1] if found else None

    def save(self, learner: Learner, state: TrainState) -> Path:
        target = self._folder / f"step-{state.step:05}"
        part = self._folder / f".{target.name}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            learner.model.save(part)
            torch.save(learner.state(), part / OPTIMIZER_FILE)
            (part / STATE_FILE).write_text(state.model_dump_json(indent=1))
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(part, ignore_errors=True)
            raise PolarError(
                f"the checkpoint of step {state.step} cannot be saved in {self._folder}: {error}. Free space "
                "there; --resume continues from the last one that was saved"
            ) from error
        for old in self._complete()[: -self._keep]:
            shutil.rmtree(old)
        return target

    def note(self, state: TrainState) -> None:
        """What has become known of a step since it was saved; nothing if it was not."""
        file = self._folder / f"step-{state.step:05}" / STATE_FILE
        if file.exists():
            part = file.with_name(f".{file.name}")
            part.write_text(state.model_dump_json(indent=1))
            part.replace(file)

    def _complete(self) -> list[Path]:
        found = (path.parent for path in self._folder.glob(f"step-*/{STATE_FILE}"))
        return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))


def read_state(checkpoint: Path) -> TrainState:
    return TrainState.model_validate_json((checkpoint / STATE_FILE).read_text())


def load_learner_state(learner: Learner, checkpoint: Path) -> None:
    """The optimizer. The weights are the checkpoint itself, from which the model was loaded."""
    learner.load_state(torch.load(checkpoint / OPTIMIZER_FILE, map_location="cpu", weights_only=False))
