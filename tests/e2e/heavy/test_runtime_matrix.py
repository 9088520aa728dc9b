"""Six harnesses in each runtime: a tool loop really executed inside, files got back, exit code 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_loop import SHELL_TOOLS
from runtime_loop import assert_done_inside, loop_in, need

from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.parametrize("runtime", ["local", "bubblewrap", "docker", "apptainer"])
@pytest.mark.parametrize("harness", SHELL_TOOLS)
async def test_a_tool_loop_in_a_runtime(
    harness: str, runtime: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    spec = await need(runtime)
    assert_done_inside(spec, await loop_in(spec, harness, smollm2, tmp_path))
