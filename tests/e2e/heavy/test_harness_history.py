"""What harnesses do to the calls of the model in their history, with all that docs/design/matching.md says of it.

Where it is the same call in other words, the request goes on in the model's own tokens and says what was
overlooked. Where it is another call, the request forks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exactly_once import assert_exactly_once
from harness_loop import ANSWER, Loop, Outcome, shell_call, tool_call

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

WRITES = "echo hello > answer.txt"


def steps(*turns: str) -> Callable[[str], str]:
    """Each turn says its number, so the next one is the first that the prompt does not hold. `WORK` in a turn is
    the folder the harness says it works in."""

    def reply(prompt: str) -> str:
        done = len(set(re.findall(r"This is step (\d+)\.", prompt)))
        if done == len(turns):
            return ANSWER
        found = re.search(r"working directory: (\S+)", prompt)
        turn = turns[done].replace("WORK", found[1] if found else ".")
        return f"This is step {done}.\n{turn}"

    return reply


def file(name: str, **arguments: Any) -> str:
    return tool_call(name, {"file_path": "WORK/notes.txt", **arguments})


CLAUDE_CODE = [
    (file("Write", content="one\ntwo\n"), "arguments_reformatted"),
    (file("Write", content="one  \ntwo\t\n"), "argument_rewritten"),
    (file("Edit", old_string="one", new_string="1"), "default_arguments"),
    (file("Edit", old_string="1", new_string="2", replace_all="true"), "arguments_coerced"),
    (tool_call("Bash", {"command": f"cd WORK && {WRITES}"}), "argument_rewritten"),
    (tool_call("Bash", {"command": "ls", "timeout": "5000"}), "arguments_coerced"),
    (tool_call("Bash", {"command": r"find . -exec true {} \\;"}), "argument_rewritten"),
]
"""What the model says, and what is to be overlooked in the way it comes back."""


def assert_done(outcome: Outcome) -> None:
    result = outcome.result
    assert (result.exit_code, result.failure) == (0, None), result
    assert result.score is not None and result.score.reward == 1.0
    assert outcome.calls[-1].response.content == ANSWER
    assert_exactly_once(outcome.calls, outcome.trajectory)
    assert result.statistics.merge_rate == 1.0


async def test_claude_code_writes_calls_anew(smollm2: SmolLM2Renderer, tmp_path: Path, report: Any) -> None:
    turns, named = zip(*CLAUDE_CODE, strict=True)
    outcome = await Loop(smollm2, tmp_path, script=steps(*turns)).run("claude_code")
    report("claude_code", {}, outcome)
    assert_done(outcome)
    assert [call.tolerant for call in outcome.calls] == [(), *((name,) for name in named)]
    assert len(outcome.trajectory.traces) == 1


async def test_opencode_repairs_a_call_or_replaces_it(
    smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    turns = [
        shell_call("opencode", WRITES).replace('"bash"', '"Bash"'),
        tool_call("no_such_tool", {"a": 1}),
        shell_call("opencode", "cat answer.txt"),
    ]
    outcome = await Loop(smollm2, tmp_path, script=steps(*turns)).run("opencode")
    report("opencode", {}, outcome)
    assert_done(outcome)
    capital, unknown, after, end = outcome.calls
    assert "name_lowered" in unknown.tolerant and unknown.parent_id == capital.call_id and unknown.continues
    assert (after.parent_id, after.break_reason) == (capital.call_id, "history_edited"), "it is another call now"
    names = [call.name for message in after.new_messages for call in message.tool_calls]
    assert names[-1] == "invalid" and unknown.response.tool_calls[0].name == "no_such_tool"
    assert end.parent_id == after.call_id and end.continues and not end.break_reason
    spans = [[span.call_id for span in trace.spans] for trace in outcome.trajectory.traces]
    assert sorted(map(len, spans)) == [2, 2], (
        "what the model really said is a trace of its own, and so is the rest"
    )
