"""All samples of a task begin with the same prompt, token for token: a baseline over equal prompts, and a prefix
that an engine computes once."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_loop import Loop
from runtime_loop import need

from polar.runtimes.local.runtime import UNEQUAL_PATHS
from polar.runtimes.local.views import TARGET
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.parametrize("runtime", ["local", "bubblewrap"])
async def test_the_first_prompts_of_a_group_are_equal(
    runtime: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    loop = Loop(smollm2, tmp_path, runtime=await need(runtime), samples=2)
    await loop.run("pi")
    said = (note for result in loop.results.values() for note in result.notes)
    notes = [note for note in said if note.startswith(UNEQUAL_PATHS)]
    if notes:
        pytest.skip(notes[0])
    first, second = (calls[0].new_prompt_ids for calls in loop.calls.values())
    assert len(first) > 500
    assert list(first) == list(second)
    assert (str(TARGET) if runtime == "local" else "/work") in smollm2.decode(first)
