from __future__ import annotations

from pathlib import Path

import pytest
from workshop import Workshop

from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.fixture
def workshop(smollm2: SmolLM2Renderer, tmp_path: Path) -> Workshop:
    return Workshop(smollm2, tmp_path / "runs")
