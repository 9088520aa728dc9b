"""The port of weight updates: an engine that takes new weights while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from polar.errors import ConfigError, PolarError
from polar.types import Spec, Strict

if TYPE_CHECKING:
    import torch

Weights = Mapping[str, "torch.Tensor"]
"""By the names of the model's own checkpoint: `model.state_dict()`."""
DtypeName = Literal["bfloat16", "float16", "float32"]


class WeightError(PolarError):
    """The engine did not take the new weights, or what it took is not what the trainer has."""


class WeightOptions(Strict):
    transfer: Literal["disk", "ipc"] = "disk"
    """disk: through a folder that trainer and server both see. ipc: out of the trainer's GPU memory; only vLLM, on
    the same GPU."""
    dtype: DtypeName | None = None
    """What the tensors are converted to. None: sent as they are."""
    folder: Path | None = None
    """Where the checkpoint for the server is written. None: in shared memory if there is any, else in the folder
    for temporary files."""


class WeightTarget(Protocol):
    """An engine that takes new weights while it runs. All methods raise `WeightError` or `EngineError`."""

    async def hold(self) -> None:
        """No token is sampled until `release`; replies under way keep their place."""
        ...

    async def load(self, weights: Weights) -> None:
        """Replaces the weights and drops the prefix cache, which was computed with the old ones."""
        ...

    async def release(self) -> None: ...

    async def score(self, ids: Sequence[int]) -> list[float]:
        """The logprob of each of `ids[1:]` after the ids before it. Not between `hold` and `release`."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class VersionedTarget(Protocol):
    """A target whose engine can report the version of the weights that sampled each token."""

    async def name_version(self, version: str) -> None:
        """The engine reports it for all tokens sampled from now on."""
        ...


@runtime_checkable
class ReplicatedTarget(Protocol):
    """A target of several engines, which must have the same weights whenever they sample."""

    def present(self) -> Mapping[str, WeightTarget]:
        """The replicas that take part in updates, by name; without those that did not answer at the last one."""
        ...


TARGETS = {
    "pool": "polar.trainers.weights.pool:PoolTarget",
    "sglang": "polar.trainers.weights.sglang:SglangTarget",
    "torch": "polar.trainers.weights.vllm:TorchTarget",
    "vllm": "polar.trainers.weights.vllm:VllmTarget",
}
IPC_TARGETS = {"vllm": "polar.trainers.weights.vllm_ipc:VllmIpcTarget"}


def weight_target(engine: Spec, model: Path, options: WeightOptions | None = None) -> WeightTarget:
    """The target of an engine as `polar.toml` names it. `model`: the folder with the config and tokenizer files of
    the model that is trained."""
    chosen = options or WeightOptions()
    return _target_of(engine, chosen)(engine.options, model, chosen)


def check_takes_weights(engine: Spec, options: WeightOptions | None = None) -> None:
    """Raises `ConfigError` for an engine that takes none; to be asked before anything is started."""
    chosen = options or WeightOptions()
    target = _target_of(engine, chosen)
    for inner in target.inner_specs(engine.options) if hasattr(target, "inner_specs") else ():
        check_takes_weights(inner, chosen)


def check_has_address(engine: Spec, options: WeightOptions | None = None) -> None:
    """Raises `ConfigError` for an engine that each node starts for itself: a trainer cannot reach it."""
    chosen = options or WeightOptions()
    target = _target_of(engine, chosen)
    if hasattr(target, "check_address"):
        target.check_address(engine.options)
    for inner in target.inner_specs(engine.options) if hasattr(target, "inner_specs") else ():
        check_has_address(inner, chosen)


def _target_of(engine: Spec, options: WeightOptions) -> Any:
    known = IPC_TARGETS if options.transfer == "ipc" else TARGETS
    if engine.name not in known:
        raise ConfigError(
            f"the engine {engine.name!r} does not take new weights by {options.transfer}; these do: "
            f"{', '.join(sorted(known))}"
        )
    module, _, name = known[engine.name].partition(":")
    return getattr(import_module(module), name)  # loaded when used, like the engines themselves
