"""A real harness that writes its history in other words than the model: the tokens stay the model's own."""

from __future__ import annotations

import json
from pathlib import Path

from exactly_once import assert_exactly_once
from harness_loop import ANSWER, Loop, tool_call

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

EDITS = json.dumps([{"oldText": "helo", "newText": "hello"}])
TURNS = [
    f"First a draft.\n{tool_call('write', {'path': 'answer.txt', 'content': 'helo'})}",
    f"Then the end.\n{tool_call('edit', {'path': 'answer.txt', 'edits': EDITS})}",
    ANSWER,
]


def script(prompt: str) -> str:
    said = [turn for turn in TURNS if turn.partition("\n")[0] in prompt]
    return TURNS[len(said)]


async def test_a_list_that_the_model_wrote_as_a_text(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """pi takes it for the list it spells, and sends it back as one."""
    outcome = await Loop(smollm2, tmp_path, script=script).run("pi")
    assert outcome.result.failure is None
    assert outcome.result.score is not None and outcome.result.score.reward == 1.0, "the edit was made"
    write, edit, end = outcome.calls
    (said,), (echoed,) = edit.response.tool_calls, end.new_messages[0].tool_calls
    assert isinstance(json.loads(said.arguments)["edits"], str)
    assert isinstance(json.loads(echoed.arguments)["edits"], list)
    assert (edit.tolerant, end.tolerant) == (("arguments_reformatted",), ("arguments_coerced",))
    assert end.parent_id == edit.call_id and end.continues and edit.parent_id == write.call_id
    assert_exactly_once(outcome.calls, outcome.trajectory)
    assert len(outcome.trajectory.traces) == 1 and outcome.result.statistics.merge_rate == 1.0
