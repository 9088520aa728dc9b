"""What targets share whose engine is a server at an address: commands, errors that name the fix, scores."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from polar.engines.pool.same_weights import weight_state
from polar.engines.remote.engine import RemoteEngine
from polar.engines.remote.server import RemoteServer, ServerRefused, StreamOptions, bearer
from polar.errors import EngineError
from polar.registry import options_of
from polar.trainers.weights.base import WeightError, WeightOptions, Weights
from polar.trainers.weights.checkpoint import Checkpoint, CheckpointFolder, ModelFolder
from polar.types import token_ids


class ServerTarget(ABC):
    """A client of one server, with a checkpoint folder for it. It scores as the engine of `polar.toml` does."""

    engine_class: ClassVar[type[RemoteEngine]]
    advice: ClassVar[str]
    """What a server lacks that does not have the routes of weight updates."""

    def __init__(self, engine_options: Mapping[str, Any], model: Path, options: WeightOptions) -> None:
        parsed = options_of("engine", self.engine_class, dict(engine_options))
        assert isinstance(parsed, StreamOptions)
        product, headers = self.engine_class.product, bearer(parsed.api_key())
        self.model = ModelFolder(model)
        self.options = options
        self.server = RemoteServer(product, self.engine_class.hint, parsed.url, headers, parsed.silence_timeout_s)
        self._engine = self.engine_class(parsed)
        self._scores = False
        """Whether the engine for scores was started, with its self-test."""
        self.checkpoint: Checkpoint = CheckpointFolder(self.model, options.dtype, options.folder)

    @abstractmethod
    async def hold(self) -> None:
        """As `WeightTarget.hold`."""

    @abstractmethod
    async def load(self, weights: Weights) -> None:
        """As `WeightTarget.load`."""

    @abstractmethod
    async def release(self) -> None:
        """As `WeightTarget.release`."""

    async def score(self, ids: Sequence[int]) -> list[float]:
        await self._start()
        return (await self._engine.score(token_ids(ids), range(1, len(ids)))).tolist()

    async def ping(self) -> None:
        """Raises `EngineError` if the server does not answer. Also while it is held."""
        await self.server.ping()

    async def reported_version(self) -> str:
        """The version of the weights that the server reports with a token. Not while it is held."""
        await self._start()
        return (await weight_state(self._engine)).version

    async def close(self) -> None:
        await self._engine.stop()
        await self.server.close()
        await asyncio.to_thread(self.checkpoint.close)

    async def _start(self) -> None:
        if not self._scores:
            await self._engine.start()
            self._scores = True

    async def written(self, weights: Weights) -> Path:
        """The folder with the weights, on a disk that the server sees as well."""
        return await asyncio.to_thread(self.checkpoint.write, weights)

    async def command(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            await self.server.command(path, body)
        except ServerRefused as error:
            raise self.refusal(path, error) from error
        except EngineError as error:
            raise WeightError(str(error)) from error

    def refusal(self, path: str, error: ServerRefused) -> WeightError:
        if error.status in (403, 404, 405):
            return WeightError(f"{self.server.product} at {self.server.url} does not offer {path}: {self.advice}")
        return WeightError(str(error))
