"""A window that fills up: harnesses summarise in time by the usage we report, and a request too long is refused.

The usage is the gateway's own count. Texts of digits show that it counts: they are a token a character here, and
harnesses that guess take them for a quarter of that.

What cannot be had: Gemini CLI has no setting for its window, so it never summarises in ours and ends with 1 at the
first refusal. The summary of Claude Code is asked for with the same headers, tools and system prompt as any turn;
its kind is known by the words that ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, COMMAND, CONTEXT_TOKENS, MARK, Loop, Outcome, last_turn, shell_call

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call

INSTRUCTION = "Read the whole log, then write hello into the file answer.txt."
SUMMARY = "Nothing in the log is of use."
WRAPPED = {
    "claude_code": f"<analysis>Short.</analysis>\n<summary>{SUMMARY}</summary>",
    "qwen_code": f"<state_snapshot>{SUMMARY}</state_snapshot>",
}
"""Where a harness looks for its summary between tags."""
READING = "I read on."
ASKS_FOR_SUMMARY = re.compile("summar|handoff|checkpoint|state_snapshot", re.IGNORECASE)


def words(lines: int) -> str:
    return f"yes 'alpha beta gamma delta epsilon zeta eta theta iota kappa' | head -n {lines}"


def digits(size: int) -> str:
    return f"printf '%0{size}d' 7"


class Case(NamedTuple):
    harness: str
    context_tokens: int
    commands: tuple[str, ...]
    """Whose output fills the window, one in each turn."""
    options: dict[str, Any] = {}


def script_of(harness: str, commands: tuple[str, ...]) -> Callable[[str], str]:
    """Reads the log command by command, summarises when asked, and goes on from a summary with the work itself."""

    def reply(prompt: str) -> str:
        read = prompt.count(READING)
        if MARK in prompt:
            return ANSWER
        last = last_turn(prompt)
        if SUMMARY not in prompt and not last.startswith("tool") and read and ASKS_FOR_SUMMARY.search(last):
            return WRAPPED.get(harness, SUMMARY)
        if SUMMARY in prompt or read == len(commands):
            return shell_call(harness, COMMAND)
        # Some harnesses end a run in which the same command comes again and again; Qwen Code can miss the output
        # of a command that ends at once.
        command = f"{commands[read]}; echo part {read}; sleep 0.2"
        return f"{READING}\n{shell_call(harness, command)}"

    return reply


async def fill(case: Case, loop: Loop) -> Outcome:
    loop.instruction = INSTRUCTION
    loop.context_tokens = case.context_tokens
    loop.script = script_of(case.harness, case.commands)
    return await loop.run(case.harness, budgets={"max_calls": 20}, **case.options)


def name_of(case: Any) -> str | None:
    return case.harness if isinstance(case, Case) else None


def summaries(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if SUMMARY in call.response.content]


def assert_nothing_lost(outcome: Outcome) -> None:
    assert all(call.received for call in outcome.calls)
    assert len(outcome.calls) == len(outcome.engine.requests), "a refused request is not a call"
    assert_exactly_once(outcome.calls, outcome.trajectory)


def assert_went_on(outcome: Outcome, *, exit_code: int = 0) -> None:
    """One summary, then the work: the answer stands in a conversation that begins with the summary."""
    result, calls = outcome.result, outcome.calls
    assert result.exit_code == exit_code, result
    assert result.score is not None and result.score.reward == (0.0 if exit_code else 1.0)
    assert_nothing_lost(outcome)
    (summary,) = summaries(calls)
    at = calls.index(summary)
    assert all(READING in call.response.content for call in calls[:at])
    assert calls[at + 1].parent_id is None and calls[at + 1].break_reason == "history_rewritten"
    assert any(SUMMARY in message.content for message in calls[at + 1].new_messages)
    assert calls[-1].response.content == ANSWER
    read = [call.call_id for call in calls[:at]]
    assert [span.call_id for span in outcome.trajectory.traces[0].spans] == read, "what was before stays one trace"


FILLED = [
    Case("codex", 16_384, (words(200),) * 6),
    Case("claude_code", 32_768, (words(300),) * 6),
    Case("opencode", 16_384, (words(200),) * 6),
    Case("pi", 8192, (words(100),) * 6),
    Case("qwen_code", 32_768, (words(300),) * 6),
]


@pytest.mark.parametrize("case", FILLED, ids=name_of)
async def test_a_window_that_fills_up(case: Case, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any) -> None:
    outcome = await fill(case, Loop(smollm2, tmp_path))
    report(case.harness, {"window": case.context_tokens}, outcome)
    assert outcome.result.failure is None
    assert_went_on(outcome)
    (summary,) = summaries(outcome.calls)
    assert summary.kind == "compaction" and outcome.kinds.count("compaction") == 1


@pytest.mark.parametrize("case", [case for case in FILLED if case.harness in ("codex", "pi")], ids=name_of)
async def test_a_window_with_room(case: Case, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """The same work as above, and no reason to summarise."""
    roomy = case._replace(context_tokens=CONTEXT_TOKENS)
    outcome = await fill(roomy, Loop(smollm2, tmp_path))
    assert outcome.result.failure is None
    assert not summaries(outcome.calls) and len(outcome.trajectory.traces) == 1


@pytest.mark.parametrize(
    ("case", "calls_before"),
    [
        (Case("claude_code", 32_768, (digits(3000),) * 6), 3),
        (Case("qwen_code", 32_768, (digits(3000),) * 9), 7),
    ],
    ids=name_of,
)
async def test_the_reported_usage_decides(
    case: Case, calls_before: int, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    """By a guess from the length of the text the window would have lasted for all the commands."""
    outcome = await fill(case, Loop(smollm2, tmp_path))
    assert_went_on(outcome)
    (summary,) = summaries(outcome.calls)
    assert outcome.calls.index(summary) == calls_before


TOO_LONG = [
    # Each of the outputs is short by guess, so none of them is expected to fill the window.
    (Case("claude_code", 65_536, (digits(28_000), digits(10_000), digits(23_000)), {"max_tokens": 1024}), 0),
    (Case("pi", 8192, (digits(3200), digits(5000))), 0),
    (Case("qwen_code", 32_768, (digits(25_000),)), 0),
    (Case("opencode", 16_384, (digits(14_000),)), 1),
]


@pytest.mark.parametrize(("case", "exit_code"), TOO_LONG, ids=name_of)
async def test_a_request_too_long_is_followed_by_a_summary(
    case: Case, exit_code: int, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    """OpenCode goes on and does the work, and counts the refusal as an error all the same: its session failed."""
    outcome = await fill(case, Loop(smollm2, tmp_path))
    report(case.harness, {"window": case.context_tokens, "refused": True}, outcome)
    assert_went_on(outcome, exit_code=exit_code)
    read = [call for call in outcome.calls if READING in call.response.content]
    assert len(read) == len(case.commands), "the last output did not fit, and so it was the last"
    assert [call.kind for call in summaries(outcome.calls)] == ["compaction"]
    failure = outcome.result.failure
    assert failure is None if exit_code == 0 else failure is not None and failure.agent, failure


ENDED = [
    (Case("codex", 10_000, (digits(6000),)), 1),
    (Case("gemini_cli", 16_384, (digits(9000),)), 1),
    (Case("claude_code", 32_768, (digits(29_000),), {"max_tokens": 1024}), 1),
    (Case("pi", 8192, (digits(8000),)), 0),
]


@pytest.mark.parametrize(("case", "exit_code"), ENDED, ids=name_of)
async def test_a_request_too_long_that_ends_the_harness(
    case: Case, exit_code: int, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    """Codex and Gemini CLI do not summarise after a refusal; the other two cannot, because all that is too long is
    the last output, which they keep. pi ends with 0 and says nothing: only the score tells."""
    outcome = await fill(case, Loop(smollm2, tmp_path))
    report(case.harness, {"window": case.context_tokens, "refused": True}, outcome)
    result = outcome.result
    assert result.exit_code == exit_code
    if exit_code:
        assert result.stage.value == "FAILED" and result.failure is not None
        assert (result.failure.where, result.failure.agent) == ("harness", True), "the agent's doing: reward 0"
    else:
        assert (result.stage.value, result.failure, outcome.words.strip()) == ("COMPLETED", None, "")
    assert result.score is not None and result.score.reward == 0.0
    assert_nothing_lost(outcome)
    (only,) = outcome.calls
    (trace,) = outcome.trajectory.traces
    assert [span.call_id for span in trace.spans] == [only.call_id], "earlier text is kept"
