"""One light harness, four dialects: pi speaks all of them, so the whole gateway is driven without heavy downloads.

First with an engine that follows a script and watches every token, then freely on the embedded model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, Loop
from real_run import calls_of, polar_run

from polar.store.trajectories import read_trajectory
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

EXAMPLE = Path(__file__).parents[2] / "examples" / "dialects.toml"
DIALECTS = {
    "openai-completions": "openai_chat",
    "openai-responses": "openai_responses",
    "anthropic-messages": "anthropic",
    "google-generative-ai": "google",
}
TASKS = {
    "chat-completions": "openai_chat",
    "responses": "openai_responses",
    "messages": "anthropic",
    "generate-content": "google",
}


@pytest.mark.parametrize("api", DIALECTS)
async def test_a_tool_loop_on_the_script(api: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any) -> None:
    outcome = await Loop(smollm2, tmp_path).run("pi", api=api)
    report("pi", {"api": api}, outcome)
    result = outcome.result
    assert (result.exit_code, result.failure) == (0, None), result
    assert result.score is not None and result.score.reward == 1.0, "its own tool wrote the file"
    first, second = outcome.calls
    assert (first.dialect, first.finish_reason) == (DIALECTS[api], "tool_calls")
    assert (second.parent_id, second.continues, second.finish_reason) == (first.call_id, True, "stop")
    assert first.received and second.received and outcome.kinds == ["agent", "agent"]
    assert outcome.words.strip() == ANSWER
    assert_exactly_once(outcome.calls, outcome.trajectory)
    assert result.statistics.merge_rate == 1.0 and len(outcome.trajectory.traces) == 1


@pytest.mark.parametrize("fault", ["error", "busy", "cut"])
@pytest.mark.parametrize("api", DIALECTS)
async def test_it_recovers_from_an_engine_that_fails_once(
    api: str, fault: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    outcome = await Loop(smollm2, tmp_path).run("pi", api=api, faults=[fault])
    assert outcome.engine.failed == [fault]
    assert (outcome.result.exit_code, outcome.result.failure) == (0, None), outcome.result
    whole = [call for call in outcome.calls if call.finish_reason != "aborted"]
    assert [call.finish_reason for call in whole] == ["tool_calls", "stop"] and whole[1].continues
    assert_exactly_once(outcome.calls, outcome.trajectory)
    (trace,) = outcome.trajectory.traces
    assert trace.trainable_tokens == sum(len(call.completion_ids) for call in whole), (
        "no turn twice, none invented"
    )


@pytest.fixture(scope="module")
def free_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return polar_run(tmp_path_factory.mktemp("dialects"), EXAMPLE)


@pytest.mark.check
def test_a_free_session_in_every_dialect_ends_in_a_verdict(free_run: dict[str, Any]) -> None:
    assert {result["task_id"] for result in free_run["results"]} == set(TASKS)
    for result in free_run["results"]:
        assert result["stage"] == "COMPLETED" or result["failure"]["policy"], result
        assert result["score"]["reward"] in (0.0, 1.0)


@pytest.mark.check
def test_what_the_model_said_freely_is_captured_and_every_token_stands_once(free_run: dict[str, Any]) -> None:
    for result in free_run["results"]:
        calls = calls_of(free_run, result["session_id"])
        assert calls and {call.dialect for call in calls} == {TASKS[result["task_id"]]}
        assert_exactly_once(calls, read_trajectory(free_run["root"] / result["traces"]))
        assert result["statistics"]["merge_rate"] in (None, 1.0)
