"""The `torch` engine: starts a sampler as its child, or uses one that runs, and speaks vLLM's protocol with it."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.child_process import ChildProcess
from polar.engines.embedded.processors import idle_processors
from polar.engines.remote.server import RemoteServer
from polar.engines.torch.default_model import default_model
from polar.engines.torch.settings import DtypeName, SamplerSettings
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.errors import ContextOverflow, EngineError, PolarError
from polar.types import Logprobs, Strict, TokenIds

EXIT_DELAY_S = 1.0
"""How long after a lost connection the child's exit may become visible."""
KEY_VARIABLE = "POLAR_SAMPLER_KEY"
"""Environment variable with the key of a shared sampler."""
PACKAGES = ("torch", "transformers", "safetensors")


class TorchOptions(Strict):
    url: str | None = None
    """A sampler that runs already, such as one that a trainer has started; the options below are then its own."""
    api_key_env: str | None = None
    """The environment variable with that sampler's key."""
    api_key_file: Path | None = None
    model: str | None = None
    """A folder of safetensors or the id of a model on the Hugging Face hub; None: the default model."""
    device: str = "auto"
    """auto: the GPU if there is one."""
    dtype: DtypeName = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    context_tokens: int = Field(default=8192, ge=64)
    parallel: int = Field(default=4, ge=1, le=1024)
    """Sequences sampled at once; each has room for the whole context."""
    threads: int | None = Field(default=None, ge=1)
    """On a CPU; None: the number of processors that are idle at the start."""
    prefix_cache_mib: int = Field(default=2048, ge=0)
    """Memory for the keys and values of ended calls, with which a next call goes on."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """For the self-test, which follows the loading of the weights."""
    silence_timeout_s: float = Field(default=600.0, gt=0)
    """How long a call may get nothing, queueing included, before it fails."""

    async def settings(self, api_key: str) -> SamplerSettings:
        """Of a sampler with these options."""
        return SamplerSettings(
            model=self.model or str(await default_model()),
            device=self.device,
            dtype=self.dtype,
            context_tokens=self.context_tokens,
            parallel=self.parallel,
            threads=self.threads or await idle_processors(),
            prefix_cache_mib=self.prefix_cache_mib,
            api_key=api_key,
        )


class TorchProcess(ChildProcess):
    product = "the torch engine"
    command = ("-m", "polar.engines.torch.server", "--child")
    start_timeout_s = 600.0


class SamplerInfo(msgspec.Struct, frozen=True):
    parallel: int
    device: str = ""
    dtype: str = ""


class SamplerOptions(VllmOptions):
    key: str = ""
    """Of a child; kept in memory only."""

    def api_key(self) -> str:
        return self.key or super().api_key()


class SamplerClient(VllmEngine):
    """The client of a sampler. Unlike vLLM, the sampler reports how many sequences it takes at once, and holds no
    reply to a schema."""

    name = "torch"
    product = "the torch engine's sampler"
    hint = "python -m polar.engines.torch.server --model FOLDER"

    async def _describe(self, server: RemoteServer) -> EngineInfo:
        info = await super()._describe(server)
        about = await server.get("/server_info", SamplerInfo)
        version = f"{info.version}, {about.dtype} on {about.device}"
        return msgspec.structs.replace(info, parallel=about.parallel, version=version, constrains=False)


class TorchEngine:
    Options: type[BaseModel] = TorchOptions
    name = "torch"

    def __init__(self, options: TorchOptions) -> None:
        self._options = options
        self._process: TorchProcess | None = None
        self._client: SamplerClient | None = None
        self._counters: dict[str, Any] = {}

    async def start(self) -> EngineInfo:
        if self._client is not None or self._process is not None:
            raise EngineError("the torch engine is already started; stop it first")
        try:
            address, key = await self._sampler()
            self._client = SamplerClient(self._client_options(address, key))
            return await self._client.start()
        except BaseException:
            await self.stop()
            raise

    async def _sampler(self) -> tuple[str, str]:
        """The address of the sampler and its key; starts one unless the options name it."""
        if self._options.url is not None:
            return self._options.url, ""
        _check_packages()
        settings = await self._options.settings(secrets.token_urlsafe(24))
        self._process = await TorchProcess.spawn()
        return await self._process.ready(settings), settings.api_key

    def _client_options(self, address: str, key: str) -> SamplerOptions:
        options = self._options
        return SamplerOptions(
            url=address,
            key=key,
            api_key_env=options.api_key_env,
            api_key_file=options.api_key_file,
            start_timeout_s=options.start_timeout_s,
            silence_timeout_s=options.silence_timeout_s,
        )

    def _running(self) -> SamplerClient:
        if self._client is None:
            raise EngineError("the torch engine is not running; start it first")
        return self._client

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        process = self._process
        try:
            async with aclosing(self._running().generate(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except ContextOverflow:  # the sampler is alive
            raise
        except EngineError as error:
            if process is not None and await process.ended_within(EXIT_DELAY_S):
                raise EngineError(f"the torch engine died: {process.status_and_log()}; start it again") from error
            raise

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        return await self._running().score(ids, positions)

    async def ping(self) -> None:
        await self._running().ping()

    def counters(self) -> dict[str, Any]:
        return self._client.counters() if self._client else dict(self._counters)

    async def revive(self) -> None:
        """A sampler that was started again has the weights of the option `model`, not those pushed since."""
        if self._options.url is None and (self._process is None or await self._process.ended_within(EXIT_DELAY_S)):
            await self.stop()
            await self.start()

    @asynccontextmanager
    async def shared(self, model: str) -> AsyncGenerator[dict[str, Any]]:
        """The key is passed on in the environment, so that it is in no file."""
        if self._options.url is not None:
            yield self._options.model_dump(exclude_defaults=True)
            return
        _check_packages()
        settings = await self._options.model_copy(update={"model": model}).settings(secrets.token_urlsafe(24))
        process = await TorchProcess.spawn()
        try:
            address = await process.ready(settings)
            os.environ[KEY_VARIABLE] = settings.api_key
            yield {"url": address, "api_key_env": KEY_VARIABLE}
        except PolarError as error:  # what its clients say of a sampler that is gone does not help
            if await process.ended_within(EXIT_DELAY_S):
                raise EngineError(f"the torch engine died: {process.status_and_log()}") from error
            raise
        finally:
            await process.stop()

    async def stop(self) -> None:
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if client is not None:
                self._counters = client.counters()
                await client.stop()
        finally:
            if process is not None:
                await process.stop()


def _check_packages() -> None:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise EngineError(f"the torch engine needs {', '.join(missing)}: pip install 'polar-rollout[torch]'")
