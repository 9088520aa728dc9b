"""A gateway on a real socket, with the real vocabulary, a real journal and a scripted engine behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playbook import Gateway, OpenGateway, running_gateway

from polar.testing import Script
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.fixture
async def open_gateway(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncGenerator[OpenGateway]:
    async with AsyncExitStack() as stack:

        async def open_one(script: Script, *, renderer: Any = smollm2, **settings: Any) -> Gateway:
            return await running_gateway(stack, renderer, tmp_path, script, **settings)

        yield open_one
