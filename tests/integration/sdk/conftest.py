"""A real node over the real default model, started once, and the official SDKs as its clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib.util import find_spec

import pytest
import pytest_asyncio
from speakers import SPEAKERS
from visits import CONTEXT_TOKENS, Bench

from polar.config import Config
from polar.node import open_node
from polar.store.paths import RunPaths
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(smollm2: SmolLM2Renderer, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bench]:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is missing: pip install 'polar-rollout[embedded]'")
    # One sequence, so that the long head of every conversation with tools is evaluated once.
    options = {"parallel": 1, "context_tokens": CONTEXT_TOKENS}
    config = Config.model_validate({"engine": {"name": "embedded", "options": options}})
    paths = RunPaths.create(tmp_path_factory.mktemp("runs"))
    async with open_node(config, paths, renderer=smollm2) as node, Bench(node) as bench:
        yield bench


@pytest.fixture(params=SPEAKERS)
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param
