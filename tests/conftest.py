"""Fixtures of all suites: the default model's own vocabulary, read once."""

from __future__ import annotations

import asyncio

import pytest

from polar.store.weights import WeightsError
from polar.tokens.smollm2 import SmolLM2Renderer


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2Renderer:
    renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    try:
        asyncio.run(renderer.load())
    except WeightsError as error:
        pytest.skip(str(error))
    return renderer
