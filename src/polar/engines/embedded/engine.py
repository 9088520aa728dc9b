"""The default engine: llama.cpp out of a wheel, in a child process, with weights that need no model hub."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.embedded.process import EmbeddedProcess, ServerSettings
from polar.engines.llamacpp.client import LlamaCppClient
from polar.engines.llamacpp.http import ServerProperties
from polar.engines.processors import idle_processors
from polar.errors import ContextOverflow, EngineError, SchemaRefused
from polar.store.weights import default_weights, file_sha256
from polar.types import Logprobs, Strict, TokenIds

MAX_CHOSEN_THREADS = 8
DEATH_PATIENCE_S = 1.0
"""How long a lost connection may wait for the news that the child has died."""


class EmbeddedOptions(Strict):
    parallel: int = Field(default=4, ge=1, le=64)
    """Sequences evaluated at once, each with the whole context."""
    threads: int | None = Field(default=None, ge=1)
    """None: as many as processors are idle at the start. Threads beyond that wait for each other by spinning:
    two on a machine with one free processor are several times slower than one."""
    context_tokens: int = Field(default=8192, ge=64)
    gguf: Path | None = None
    """Weights of your own; None: the default model's."""
    recover_logprobs: bool = True
    """Ask llama.cpp again for logprobs it leaves out of a reply: those of tokens that end inside a character."""
    share_prefixes: bool = True
    """Evaluate what several sessions begin with once. Off: each sequence evaluates for itself."""


class EmbeddedEngine:
    Options: type[BaseModel] = EmbeddedOptions

    def __init__(self, options: EmbeddedOptions) -> None:
        self._options = options
        self._process: EmbeddedProcess | None = None
        self._client: LlamaCppClient | None = None
        self._counters: dict[str, int] = {}
        self._state_folder: Path | None = None

    async def start(self) -> EngineInfo:
        if self._process is not None:
            raise EngineError("the embedded engine is already started; stop it first")
        if find_spec("xllamacpp") is None:
            raise EngineError("the embedded engine needs llama.cpp: pip install 'polar-rollout[embedded]'")
        try:
            return await self._start(await self._weights())
        except BaseException:
            await self.stop()
            raise

    async def _weights(self) -> Path:
        gguf = self._options.gguf
        if gguf is not None and not gguf.is_file():
            raise EngineError(f"no GGUF file at {gguf}; correct the engine option `gguf`")
        return gguf or await default_weights()

    async def _start(self, gguf: Path) -> EngineInfo:
        api_key = secrets.token_urlsafe(24)
        self._state_folder = Path(tempfile.mkdtemp(prefix="polar-engine-"))
        settings = await self._settings(gguf, api_key)  # first: a starting child is no idle processor
        self._process = await EmbeddedProcess.spawn()
        address = await self._process.ready(settings)
        recover = self._options.recover_logprobs
        shared = self._state_folder if self._options.share_prefixes else None
        self._client = LlamaCppClient(address, api_key, recover_logprobs=recover, state_folder=shared)
        properties = await self._client.open()
        await self._client.prove()
        return await self._info(gguf, properties)

    async def _settings(self, gguf: Path, api_key: str) -> ServerSettings:
        return ServerSettings(
            gguf=str(gguf),
            parallel=self._options.parallel,
            context_tokens=self._options.context_tokens,
            threads=self._options.threads or min(await idle_processors(), MAX_CHOSEN_THREADS),
            api_key=api_key,
            state_folder=str(self._state_folder),
        )

    async def _info(self, gguf: Path, properties: ServerProperties) -> EngineInfo:
        digest = await asyncio.to_thread(file_sha256, gguf)
        return EngineInfo(
            name="embedded",
            model=f"{gguf.name}@sha256:{digest[:16]}",
            context_tokens=properties.default_generation_settings.n_ctx,
            logprob_mode="raw",
            parallel=properties.total_slots,
            version=f"xllamacpp {version('xllamacpp')}",
            constrains=True,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        client, process = self._client, self._process
        if client is None or process is None:
            raise EngineError("the embedded engine is not running; start it first")
        try:
            async with aclosing(client.generate(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except (ContextOverflow, SchemaRefused):  # words of a server that lives
            raise
        except EngineError as error:
            if await process.ended(DEATH_PATIENCE_S):
                raise EngineError(f"the embedded engine died: {process.last_words()}; start it again") from error
            raise

    async def revive(self) -> None:
        if self._process is None or await self._process.ended(DEATH_PATIENCE_S):
            await self.stop()
            await self.start()

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        if self._client is None:
            raise EngineError("the embedded engine is not running; start it first")
        return await self._client.score(ids, positions)

    async def stop(self) -> None:
        client, process = self._client, self._process
        self._client = self._process = None
        try:
            if client is not None:
                self._counters = client.counters()
                await client.close()
        finally:
            if process is not None:
                await process.stop()
            if self._state_folder is not None:
                shutil.rmtree(self._state_folder, ignore_errors=True)
                self._state_folder = None

    def counters(self) -> dict[str, Any]:
        return dict(self._client.counters() if self._client else self._counters)
