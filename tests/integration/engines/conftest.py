from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
from running_llama import CONTEXT_TOKENS, LlamaServer, Started

from polar.engines.embedded.engine import EmbeddedEngine, EmbeddedOptions
from polar.engines.embedded.process import EmbeddedProcess, ServerSettings
from polar.engines.llamacpp.client import LlamaCppClient
from polar.store.weights import WeightsError, default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary

pytest.register_assert_rewrite("contracts.engine_contract", "contracts.chat_contract")


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
