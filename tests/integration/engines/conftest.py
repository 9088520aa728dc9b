from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from running_llama import CONTEXT_TOKENS, Connect, LlamaServer, Started

from polar.engines.embedded.engine import EmbeddedEngine, EmbeddedOptions
from polar.engines.embedded.process import EmbeddedProcess, ServerSettings
from polar.engines.llamacpp.client import LlamaCppClient
from polar.registry import make
from polar.store.weights import WeightsError, default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary
from polar.types import Spec

pytest.register_assert_rewrite("contracts.engine_contract", "contracts.chat_contract")


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes an engine, not started, by its name and for the server of an app."""
    async with AsyncExitStack() as stack:

        async def make_engine(name: str, app: web.Application, **options: Any) -> Any:
            server = await stack.enter_async_context(TestServer(app))
            engine = make("engine", Spec(name=name, options={"url": str(server.make_url("")), **options}))
            stack.push_async_callback(engine.stop)
            return engine

        yield make_engine


@pytest.fixture(scope="session")
def gguf() -> Path:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is missing: pip install 'polar-rollout[embedded]'")
    try:
        return asyncio.run(default_weights())
    except WeightsError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def vocabulary(gguf: Path) -> Vocabulary:
    return load_vocabulary(gguf)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started(gguf: Path) -> AsyncIterator[Started]:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=2, context_tokens=CONTEXT_TOKENS, gguf=gguf))
    yield Started(engine, await engine.start())
    await engine.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(gguf: Path) -> AsyncIterator[LlamaServer]:
    process, api_key = await EmbeddedProcess.spawn(), secrets.token_urlsafe(8)
    settings = ServerSettings(str(gguf), parallel=2, context_tokens=CONTEXT_TOKENS, threads=1, api_key=api_key)
    yield LlamaServer(await process.ready(settings), api_key, process)
    await process.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: LlamaServer) -> AsyncIterator[LlamaCppClient]:
    client = LlamaCppClient(server.address, server.api_key)
    await client.open()
    yield client
    await client.close()
