"""What targets share whose engine is a server at an address: commands, errors that name the fix, scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from polar.engines.remote.engine import RemoteEngine
from polar.engines.remote.server import RemoteServer, ServerRefused, StreamOptions, bearer
from polar.errors import EngineError
from polar.registry import options_of
from polar.trainers.weights.base import WeightError, WeightOptions, Weights
from polar.trainers.weights.checkpoint import CheckpointFolder, ModelFolder
from polar.types import token_ids


class ServerTarget:
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
        self._checkpoint = CheckpointFolder(self.model, options.dtype, options.folder)

    async def score(self, ids: Sequence[int]) -> list[float]:
        if not self._scores:
            await self._engine.start()
            self._scores = True
        return (await self._engine.score(token_ids(ids), range(1, len(ids)))).tolist()

    async def close(self) -> None:
        await self._engine.stop()
        await self.server.close()
        await asyncio.to_thread(self._checkpoint.close)

    async def written(self, weights: Weights) -> Path:
        """The folder with the weights, on a disk that the server sees as well."""
        try:
            return await asyncio.to_thread(self._checkpoint.write, weights)
        except OSError as error:
            raise WeightError(f"the weights cannot be written: {error}; choose another `folder`") from error

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
