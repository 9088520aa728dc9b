"""The light harness in each runtime that this machine has: a tool loop inside, its files brought back."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_loop import CONTAINED, assert_done_inside, loop_in, need

from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.parametrize("runtime", ["local", *CONTAINED])
async def test_a_tool_loop_inside(runtime: str, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    spec = await need(runtime)
    assert_done_inside(spec, await loop_in(spec, "pi", smollm2, tmp_path))
