"""What goes wrong between harness, gateway and engine: each harness recovers as it does with its provider.

Whatever happens, the trace holds the two turns of the loop and nothing else: no duplicated turn, no phantom.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, Loop, Outcome

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

HARNESSES = ("codex", "claude_code", "gemini_cli", "qwen_code", "opencode", "pi")
KEEPS_THE_HALF = {"qwen_code"}
"""Puts what it got of a broken reply into its history, asks for the rest, and joins the two to a turn that was
never sampled so. Its next request is a branch of its own."""
CUT_IS_FATAL = {"gemini_cli"}
"""A connection that breaks in the middle of a reply ends it, whoever serves it."""


def assert_two_turns_and_nothing_else(outcome: Outcome) -> None:
    result = outcome.result
    assert (result.exit_code, result.failure) == (0, None), result
    assert result.score is not None and result.score.reward == 1.0
    whole = [call for call in outcome.calls if call.finish_reason != "aborted"]
    assert [call.finish_reason for call in whole] == ["tool_calls", "stop"]
    assert whole[1].parent_id == whole[0].call_id and whole[1].continues
    assert whole[1].response.content == ANSWER
    assert_exactly_once(outcome.calls, outcome.trajectory)
    (trace,) = outcome.trajectory.traces
    assert [span.call_id for span in trace.spans] == [call.call_id for call in whole]
    assert trace.trainable_tokens == sum(len(call.completion_ids) for call in whole)


@pytest.mark.parametrize("fault", ["error", "busy", "cut"])
@pytest.mark.parametrize("harness", HARNESSES)
async def test_an_engine_that_fails_once(
    harness: str, fault: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    outcome = await Loop(smollm2, tmp_path).run(harness, faults=[fault])
    report(harness, {"engine": fault}, outcome)
    assert outcome.engine.failed == [fault]
    if fault == "cut" and harness in KEEPS_THE_HALF:
        assert outcome.result.score is not None and outcome.result.score.reward == 1.0
        assert outcome.calls[-1].break_reason == "history_rewritten"
        assert_exactly_once(outcome.calls, outcome.trajectory)
    else:
        assert_two_turns_and_nothing_else(outcome)
    aborted = [call for call in outcome.calls if call.finish_reason == "aborted"]
    assert len(aborted) == (fault == "cut"), "what was sampled of a broken reply is kept, and not trained on"
    assert not any(call.received for call in aborted)
    health = outcome.result.health
    assert health is not None and health.verdict != "broken", health
    assert health.calls == health.own_calls or harness in KEEPS_THE_HALF, health


OTHER_APIS = [
    ("qwen_code", "openai-responses"),
    ("qwen_code", "anthropic-messages"),
    ("qwen_code", "google-generative-ai"),
    ("opencode", "openai-responses"),
    ("opencode", "anthropic-messages"),
    ("opencode", "google-generative-ai"),
]


@pytest.mark.parametrize(("harness", "api"), OTHER_APIS)
async def test_an_engine_that_dies_in_mid_reply_in_the_harnesss_other_apis(
    harness: str, api: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    """Half a reply is asked for again, and never taken for a whole one."""
    outcome = await Loop(smollm2, tmp_path).run(harness, faults=["cut"], api=api)
    assert outcome.engine.failed == ["cut"]
    assert (outcome.result.exit_code, outcome.result.failure) == (0, None), outcome.result
    assert outcome.result.score is not None and outcome.result.score.reward == 1.0
    assert [call.finish_reason for call in outcome.calls] == ["aborted", "tool_calls", "stop"]
    assert_exactly_once(outcome.calls, outcome.trajectory)


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_connection_cut_in_the_middle_of_a_reply(
    harness: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    proxy = CuttingProxy(cut_replies=1, after_bytes=400)
    outcome = await Loop(smollm2, tmp_path, route=proxy).run(harness, faults=["slow"])
    report(harness, {"network": "cut"}, outcome)
    assert proxy.cuts == 1
    if harness in CUT_IS_FATAL:
        assert outcome.result.exit_code != 0 and outcome.result.failure is not None
        assert outcome.result.failure.where == "harness"
        return
    assert_two_turns_and_nothing_else(outcome)
    assert len(outcome.calls) == len(outcome.engine.requests) == 2, "the reply was sent again, not sampled again"


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_budget_ends_the_session_cleanly(harness: str, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    outcome = await Loop(smollm2, tmp_path).run(harness, budgets={"max_calls": 1})
    result = outcome.result
    assert (result.stage.value, result.failure, result.ended_by) == ("COMPLETED", None, "max_calls"), result
    assert result.score is not None and result.score.reward == 1.0
    assert len(outcome.calls) == 1, "what was refused is not recorded, and it is not asked for without end"
