from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from served_node import Service

from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.fixture
async def service(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(smollm2, tmp_path) as made:
        yield made


@pytest.fixture
async def patient(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose server bears long silences: lines may be cut for a while, also on a slow machine."""
    async with Service(smollm2, tmp_path, lease_beats=60) as made:
        yield made
