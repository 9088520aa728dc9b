"""All six harnesses, unmodified, in every API they speak: a tool loop, captured token for token.

Needs the harnesses' packages, about 1.6 GB, which the first run brings into the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, Loop, Outcome

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

pytestmark = pytest.mark.check

DIALECTS = {
    "openai-completions": "openai_chat",
    "openai-responses": "openai_responses",
    "anthropic-messages": "anthropic",
    "google-generative-ai": "google",
}
FOUR = [{"api": api} for api in DIALECTS]
RUNS: list[tuple[str, dict[str, Any], str]] = [
    ("codex", {}, "openai_responses"),
    ("claude_code", {}, "anthropic"),
    ("claude_code", {"bare": True}, "anthropic"),
    ("gemini_cli", {}, "google"),
    *(("qwen_code", options, DIALECTS[options["api"]]) for options in FOUR),
    *(("opencode", options, DIALECTS[options["api"]]) for options in FOUR),
    *(("pi", options, DIALECTS[options["api"]]) for options in FOUR),
]


def name_of(run: Any) -> str:
    return "-".join([run[0], *map(str, run[1].values())]) if isinstance(run, tuple) else ""


def assert_loop_done(outcome: Outcome, dialect: str) -> None:
    result = outcome.result
    assert (result.exit_code, result.failure, result.stage.value) == (0, None, "COMPLETED"), result
    assert result.score is not None and result.score.reward == 1.0, "its own tool wrote the file"
    assert {call.dialect for call in outcome.calls} == {dialect}
    assert all(call.received for call in outcome.calls)
    agent = [call for call in outcome.calls if call.kind == "agent"]
    assert [call.finish_reason for call in agent] == ["tool_calls", "stop"], outcome.kinds
    first, second = agent
    assert second.parent_id == first.call_id and second.continues, second.break_reason
    assert second.response.content == ANSWER
    assert_exactly_once(outcome.calls, outcome.trajectory)
    trained = [trace for trace in outcome.trajectory.traces if trace.trainable_tokens]
    assert len(trained) == 1 and result.statistics.merge_rate == 1.0
    assert_own_log_agrees(outcome)


def assert_own_log_agrees(outcome: Outcome) -> None:
    """What the harness wrote down about itself, reply by reply, in tokens, is what was captured."""
    health = outcome.result.health
    assert health is not None and (health.verdict, health.findings) == ("ok", ()), health
    logged = [call for call in outcome.calls if call.kind == "agent"]
    assert health.own_calls is not None and len(logged) <= health.own_calls <= health.calls


@pytest.mark.parametrize("run", RUNS, ids=name_of)
async def test_a_tool_loop(
    run: tuple[str, dict[str, Any], str], smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    harness, options, dialect = run
    outcome = await Loop(smollm2, tmp_path).run(harness, **options)
    report(harness, options, outcome)
    assert_loop_done(outcome, dialect)


async def test_a_title_is_no_part_of_the_work(smollm2: SmolLM2Renderer, tmp_path: Path, report: Any) -> None:
    outcome = await Loop(smollm2, tmp_path).run("opencode", title_call=True)
    report("opencode", {"title_call": True}, outcome)
    assert sorted(outcome.kinds) == ["agent", "agent", "auxiliary"]
    assert_loop_done(outcome, "openai_chat")
    reasons = {dropped.reason for dropped in outcome.trajectory.dropped}
    assert reasons == {"kind:auxiliary"}
