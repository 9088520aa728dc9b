"""The `llamacpp` engine: a llama-server that you run; and what it shares with the `embedded` engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

from pydantic import BaseModel

from polar.engines.base import EngineInfo, GenerateRequest, LogprobMode, Piece
from polar.engines.llamacpp.client import LlamaCppClient
from polar.engines.llamacpp.server import ServerProperties
from polar.engines.remote.proof import PROBE_TEXT, Proof, within
from polar.engines.remote.server import RemoteOptions
from polar.errors import EngineError
from polar.types import Logprobs, TokenIds


class LlamaEngine:
    """An engine with one client of one llama.cpp server."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._client: LlamaCppClient | None = None
        self._counters: dict[str, int] = {}

    def _already_started(self) -> EngineError:
        return EngineError(f"the {self.name} engine is already started; stop it first")

    def _running(self) -> LlamaCppClient:
        if self._client is None:
            raise EngineError(f"the {self.name} engine is not running; start it first")
        return self._client

    def _info(self, properties: ServerProperties, mode: LogprobMode, model: str, version: str) -> EngineInfo:
        return EngineInfo(
            name=self.name,
            model=model,
            context_tokens=properties.default_generation_settings.n_ctx,
            logprob_mode=mode,
            parallel=properties.total_slots,
            version=version,
            constrains=True,
        )

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        return self._running().generate(request)

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        return await self._running().score(ids, positions)

    async def ping(self) -> None:
        await self._running().server.ping()

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._counters = client.counters()
            await client.close()

    def counters(self) -> dict[str, Any]:
        return self._client.counters() if self._client else dict(self._counters)


class LlamaCppOptions(RemoteOptions):
    recover_logprobs: bool = True
    """Ask llama.cpp again for logprobs that it leaves out: those of tokens that end inside a character."""


class LlamaCppEngine(LlamaEngine):
    """It assigns the server's sequences to sessions, so no other node should use the same server."""

    Options: type[BaseModel] = LlamaCppOptions
    name = "llamacpp"

    def __init__(self, options: LlamaCppOptions) -> None:
        super().__init__()
        self._options = options

    async def start(self) -> EngineInfo:
        if self._client is not None:
            raise self._already_started()
        options = self._options
        self._client = LlamaCppClient(options.url, options.api_key(), recover_logprobs=options.recover_logprobs)
        try:
            return await within(options.start_timeout_s, self._start(self._client), f"llama.cpp at {options.url}")
        except BaseException:
            await self.stop()
            raise

    async def _start(self, client: LlamaCppClient) -> EngineInfo:
        properties = await client.open()
        prompt_ids = await client.server.tokenize(PROBE_TEXT)
        mode = await Proof(client, f"llama.cpp at {self._options.url}", prompt_ids).run(None)
        model = PurePath(properties.model_path).name or "unnamed"
        return self._info(properties, mode, model, properties.build_info)
