"""Weights into vLLM from disk, by the routes that `VLLM_SERVER_DEV_MODE=1` opens. The `torch` engine has the same.

An update resets the prefix cache together with the running requests: each is evaluated again under the new
weights, so every later token and its logprob are those of the new weights alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polar.engines.remote.engine import ModelList
from polar.engines.remote.server import ServerRefused
from polar.engines.vllm.engine import VllmEngine
from polar.engines.vllm.protocol import ServerVersion
from polar.errors import ConfigError, EngineError
from polar.trainers.weights.base import WeightError, WeightOptions, Weights
from polar.trainers.weights.checkpoint import is_tied
from polar.trainers.weights.server_target import ServerTarget

HOLD = "/pause?mode=keep"
RELEASE = "/resume"
RELOAD = "/collective_rpc"
DROP_CACHE = "/reset_prefix_cache?reset_running_requests=true"
NAME_VERSION = "/update_weight_version"
ADDRESS = ("url", "api_key_env", "api_key_file")
TAKES_TIED_HEADS = (0, 32)
"""Oldest version of which that is known."""


class VllmTarget(ServerTarget):
    engine_class = VllmEngine
    advice = "start it with VLLM_SERVER_DEV_MODE=1 in its environment"

    def __init__(self, engine_options: Mapping[str, Any], model: Path, options: WeightOptions) -> None:
        super().__init__(engine_options, model, options)
        self._head_checked = False

    async def hold(self) -> None:
        await self.command(HOLD)

    async def load(self, weights: Weights) -> None:
        if not self._head_checked:
            await self._check_head()
            self._head_checked = True
        await self._load(weights)
        await self.command(DROP_CACHE)

    async def release(self) -> None:
        await self.command(RELEASE)

    async def name_version(self, version: str) -> None:
        try:
            await self.server.command(NAME_VERSION, {"new_version": version})
        except ServerRefused as error:
            if error.status != 404:  # vLLM before 0.32 does not name versions
                raise self.refusal(NAME_VERSION, error) from error

    async def _load(self, weights: Weights) -> None:
        folder = await self.written(weights)
        await self.command(RELOAD, {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    async def _check_head(self) -> None:
        """A vLLM before 0.32 that was started from a tied checkpoint ignores the head of an update, answers with
        success and keeps the old one."""
        try:
            version = (await self.server.get("/version", ServerVersion)).version
            cards = (await self.server.get("/v1/models", ModelList)).data
        except EngineError as error:
            raise WeightError(str(error)) from error
        if not _older(version, TAKES_TIED_HEADS):
            return
        for folder in (Path(card.root or card.id) for card in cards):
            if (folder / "config.json").is_file() and is_tied(folder):
                raise WeightError(
                    f"vLLM {version} serves {folder}, whose head is tied to the embedding, and would keep the old "
                    f"head. Write a copy with `python -m polar.trainers.weights.untie {folder} FOLDER` and serve "
                    "that, or use vLLM 0.32"
                )


class _Sampler(VllmEngine):
    product = "the torch engine's sampler"
    hint = "python -m polar.engines.torch.server --model FOLDER"


class TorchTarget(VllmTarget):
    """Polar's own `torch` engine, which has the same routes."""

    engine_class = _Sampler
    advice = "use the sampler of this version of Polar"

    def __init__(self, engine_options: Mapping[str, Any], model: Path, options: WeightOptions) -> None:
        self.check_address(engine_options)
        super().__init__(
            {name: engine_options[name] for name in ADDRESS if name in engine_options}, model, options
        )

    @staticmethod
    def check_address(engine_options: Mapping[str, Any]) -> None:
        if not engine_options.get("url"):
            raise ConfigError(
                "a `torch` engine that each node starts for itself takes no weights: start one sampler "
                f"({_Sampler.hint}) and name it in the engine option `url`, for the nodes and for the trainer"
            )

    async def _check_head(self) -> None:
        """It takes any head."""


def _older(version: str, than: tuple[int, int]) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < than
