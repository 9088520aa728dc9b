"""The config of a training run: one TOML file. Every table but `tasks` has defaults that learn."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from polar.credit.advantages import Estimator, LossMean
from polar.errors import ConfigError
from polar.types import Strict

ComputeDtype = Literal["auto", "bfloat16", "float32"]


class TaskConfig(Strict):
    train: str
    """A task file, or `module:function`: called with 0, 1, 2, ... (other numbers with each `seed`) it returns a
    task."""
    evaluate: str | None = None
    """The same, for tasks that are never trained on."""
    evaluate_tasks: int = Field(default=64, ge=1)
    """How many of them."""
    evaluate_samples: int = Field(default=1, ge=1)
    groups: int = Field(default=8, ge=1)
    """Tasks for each step."""
    samples: int = Field(default=16, ge=2)
    """Sessions of each task: the group that a reward is compared with."""
    fields: dict[str, Any] = {}
    """Task fields that replace those of every task: another `harness`, `runtime` or `builder`."""


class RolloutConfig(Strict):
    ahead: int = Field(default=1, ge=0)
    """Batches of sessions that run while the trainer trains. 0: sampling waits for training."""
    max_age: int = Field(default=4, ge=0)
    """Tokens that were sampled more updates ago are not trained on."""
    update: Literal["drain", "in_flight"] = "drain"
    """drain: replies under way end before the weights change."""
    transfer: Literal["disk", "ipc"] = "disk"
    """ipc: out of the trainer's GPU memory, into a vLLM on the same GPU."""


class LossConfig(Strict):
    estimator: Estimator = "grpo"
    mean: LossMean = "token"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    """The importance ratio is clipped to 1 − `clip_low` .. 1 + `clip_high`."""
    max_ratio: float = Field(default=5.0, gt=1)
    """Bounds what a token of negative advantage can weigh: the clip does not."""


class OptimizerConfig(Strict):
    learning_rate: float = Field(default=3e-5, gt=0)
    warmup_steps: int = Field(default=3, ge=0)
    decay_to: float = Field(default=1.0, ge=0, le=1)
    """Share of the learning rate at the last step of the schedule, to which it falls step by step. 1: it stays."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    updates: int = Field(default=1, ge=1)
    """Optimizer updates for each step: the batch is split into as many parts of whole groups."""
    traces_per_update: int | None = Field(default=None, ge=1)
    """Instead: an update for this many traces, as trainers do that count rows."""


class ComputeConfig(Strict):
    device: str = "auto"
    """auto: a GPU if there is one."""
    dtype: ComputeDtype = "auto"
    """Of forward and backward passes. auto: bfloat16 on a GPU, float32 on a CPU, as the `torch` engine. There
    bfloat16 is faster on processors that compute in it (avx512_bf16 or amx_bf16 in /proc/cpuinfo), else slower."""
    engine_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Of the weights that the engine gets: what it serves in. None: bfloat16 from a GPU, float32 from a CPU."""
    max_tokens: int = Field(default=8192, ge=2)
    """A longer trace loses its end; a prompt that is longer is left out."""
    pack_tokens: int = Field(default=8192, ge=2)
    """Tokens of one forward pass."""
    share_prefixes: bool = True
    """What traces have in common at their beginning is computed once."""


class Schedule(Strict):
    steps: int = Field(default=50, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    """For each start: it stops after the first step that ends later, and `--resume` continues."""
    evaluate_every: int = Field(default=10, ge=1)
    evaluate_first: bool = True
    """Before the first step, so that the last evaluation has something to be compared with."""
    save_every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    """Checkpoints that are kept; the last is always among them."""


class TrainConfig(Strict):
    model: str = ""
    """A folder with safetensors, or the name of a model on a hub. Empty: the default model of the embedded engine,
    converted once."""
    output: Path = Path("polar-train")
    """Checkpoints, metrics and plots."""
    seed: int = 0
    tasks: TaskConfig
    rollout: RolloutConfig = RolloutConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    schedule: Schedule = Schedule()

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if self.optimizer.updates > self.tasks.groups:
            raise ValueError("optimizer.updates is more than tasks.groups: an update needs a whole group")
        return self


def load_train_config(path: Path) -> TrainConfig:
    try:
        return TrainConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise ConfigError(f"{path}: {problems}") from error
