"""The first prompts of two samples of a task are equal on one day, for each harness.

docs/harnesses.md has the sizes, which `--log-cli-level=INFO` shows, and what a prompt contains of its environment.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from harness_loop import SHELL_TOOLS, Loop

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

LOGGER = logging.getLogger("polar.tests")


@pytest.mark.parametrize("harness", SHELL_TOOLS)
async def test_the_first_prompts_of_a_group_are_equal(
    harness: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    loop = Loop(smollm2, tmp_path, samples=2)
    await loop.run(harness)
    for result in loop.results.values():
        if result.notes:
            pytest.skip(result.notes[0])
    prompts = [
        next(call.new_prompt_ids for call in calls if call.kind == "agent") for calls in loop.calls.values()
    ]
    LOGGER.info("%s: %d tokens in the first prompt", harness, len(prompts[0]))
    assert len(prompts) == 2
    assert list(prompts[0]) == list(prompts[1])
