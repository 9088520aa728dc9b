from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from served_node import Service

from polar.tokens.smollm2 import SmolLM2Renderer


@pytest.fixture
async def service(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(smollm2, tmp_path) as made:
        yield made
