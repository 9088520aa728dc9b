"""A llama-server somewhere, behind the token port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.llamacpp.client import LlamaCppClient
from polar.engines.remote.proof import PROBE_TEXT, Proof
from polar.engines.remote.server import RemoteOptions
from polar.errors import EngineError
from polar.types import Logprobs, TokenIds


class LlamaCppOptions(RemoteOptions):
    recover_logprobs: bool = True
    """Ask llama.cpp again for logprobs it leaves out of a reply: those of tokens that end inside a character."""


class LlamaCppEngine:
    """Its sequences are handed out here, one to a session, so no other node should use the same server."""

    Options: type[BaseModel] = LlamaCppOptions

    def __init__(self, options: LlamaCppOptions) -> None:
        self._options = options
        self._client: LlamaCppClient | None = None
        self._counters: dict[str, int] = {}

    async def start(self) -> EngineInfo:
        if self._client is not None:
            raise EngineError("the llamacpp engine is already started; stop it first")
        options = self._options
        self._client = LlamaCppClient(options.url, options.api_key(), recover_logprobs=options.recover_logprobs)
        try:
            async with asyncio.timeout(options.start_timeout_s):
                return await self._start(self._client)
        except TimeoutError as error:
            await self.stop()
            raise EngineError(
                f"llama.cpp at {options.url} has not passed the self-test in {options.start_timeout_s:.0f} s; "
                "see its log, or raise the engine option `start_timeout_s`"
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _start(self, client: LlamaCppClient) -> EngineInfo:
        properties = await client.open()
        prompt_ids = await client.server.tokenize(PROBE_TEXT)
        mode = await Proof(client, f"llama.cpp at {self._options.url}", prompt_ids).run(None)
        return EngineInfo(
            name="llamacpp",
            model=PurePath(properties.model_path).name or "unnamed",
            context_tokens=properties.default_generation_settings.n_ctx,
            logprob_mode=mode,
            parallel=properties.total_slots,
            version=properties.build_info,
            constrains=True,
        )

    def _running(self) -> LlamaCppClient:
        if self._client is None:
            raise EngineError("the llamacpp engine is not running; start it first")
        return self._client

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        return self._running().generate(request)

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        return await self._running().score(ids, positions)

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._counters = client.counters()
            await client.close()

    def counters(self) -> dict[str, Any]:
        return self._client.counters() if self._client else dict(self._counters)
