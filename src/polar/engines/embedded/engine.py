"""The `embedded` engine, the default: llama.cpp from a wheel, in a child process, with weights that need no
model hub."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, Field

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.embedded.process import EmbeddedProcess, ServerSettings
from polar.engines.embedded.processors import idle_processors
from polar.engines.llamacpp.client import LlamaCppClient
from polar.engines.llamacpp.engine import LlamaEngine
from polar.errors import ContextOverflow, EngineError, SchemaRefused
from polar.store.weights import default_weights, file_sha256, weights_to_download
from polar.types import Strict

MAX_CHOSEN_THREADS = 8
EXIT_DELAY_S = 1.0
"""How long after a lost connection the child's exit may become visible."""


class EmbeddedOptions(Strict):
    parallel: int = Field(default=4, ge=1, le=64)
    """Sequences evaluated at once, each with the whole context."""
    threads: int | None = Field(default=None, ge=1)
    """None: the number of processors that are idle at the start. More threads wait for each other by spinning:
    two on a machine with one idle processor are several times slower than one."""
    context_tokens: int = Field(default=8192, ge=64)
    gguf: Path | None = None
    """Your own weights; None: those of the default model."""
    recover_logprobs: bool = True
    """Ask llama.cpp again for logprobs that it leaves out: those of tokens that end inside a character."""
    share_prefixes: bool = True
    """Evaluate a prefix that several sessions share only once. Off: each sequence evaluates for itself."""


class EmbeddedEngine(LlamaEngine):
    Options: type[BaseModel] = EmbeddedOptions
    name = "embedded"

    def __init__(self, options: EmbeddedOptions) -> None:
        super().__init__()
        self._options = options
        self._process: EmbeddedProcess | None = None
        self._state_folder: Path | None = None

    def to_download(self) -> str:
        return "" if self._options.gguf else weights_to_download()

    async def start(self) -> EngineInfo:
        if self._process is not None:
            raise self._already_started()
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
        settings = await self._settings(gguf, api_key)  # before the child starts: it would keep a processor busy
        self._process = await EmbeddedProcess.spawn()
        address = await self._process.ready(settings)
        recover = self._options.recover_logprobs
        shared = self._state_folder if self._options.share_prefixes else None
        self._client = LlamaCppClient(address, api_key, recover_logprobs=recover, state_folder=shared)
        properties = await self._client.open()
        await self._client.prove()
        digest = await asyncio.to_thread(file_sha256, gguf)
        model = f"{gguf.name}@sha256:{digest[:16]}"
        return self._info(properties, "raw", model, f"xllamacpp {version('xllamacpp')}")

    async def _settings(self, gguf: Path, api_key: str) -> ServerSettings:
        return ServerSettings(
            gguf=str(gguf),
            parallel=self._options.parallel,
            context_tokens=self._options.context_tokens,
            threads=self._options.threads or min(await idle_processors(), MAX_CHOSEN_THREADS),
            api_key=api_key,
            state_folder=str(self._state_folder),
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        process = self._process
        try:
            async with aclosing(super().generate(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except (ContextOverflow, SchemaRefused):  # the server is alive
            raise
        except EngineError as error:
            if process is not None and await process.ended_within(EXIT_DELAY_S):
                raise EngineError(
                    f"the embedded engine died: {process.status_and_log()}; start it again"
                ) from error
            raise

    async def revive(self) -> None:
        if self._process is None or await self._process.ended_within(EXIT_DELAY_S):
            await self.stop()
            await self.start()

    async def stop(self) -> None:
        process, self._process = self._process, None
        try:
            await super().stop()
        finally:
            if process is not None:
                await process.stop()
            if self._state_folder is not None:
                shutil.rmtree(self._state_folder, ignore_errors=True)
                self._state_folder = None
