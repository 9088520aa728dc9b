"""A budget that is used up, as harnesses understand it: they get a last message and end in good order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from harness_loop import Loop

from polar.tokens.renderers.smollm2 import SmolLM2Renderer

APIS = ("openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai")
RUNS: list[Any] = [
    *(pytest.param("pi", {"api": api}, id=f"pi-{api}") for api in APIS),
    *(
        pytest.param(harness, {}, marks=pytest.mark.check, id=harness)
        for harness in ("codex", "claude_code", "gemini_cli", "qwen_code", "opencode")
    ),
]


@pytest.mark.parametrize(("harness", "options"), RUNS)
async def test_a_harness_ends_in_good_order(
    harness: str, options: dict[str, Any], smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    budgets = {"max_calls": 1, "on_exhausted": "final_message"}
    outcome = await Loop(smollm2, tmp_path).run(harness, budgets=budgets, **options)
    result = outcome.result
    assert (result.exit_code, result.stage.value, result.failure) == (0, "COMPLETED", None), result
    assert result.ended_by == "max_calls"
    assert result.score is not None and result.score.reward == 1.0, "its tool had written the file"
    assert len(outcome.calls) == len(outcome.engine.requests) == 1, "the last message is no call"
    assert "budget of this session is used up" in outcome.words
    assert_exactly_once(outcome.calls, outcome.trajectory)
    health = result.health
    assert health is not None and (health.verdict, health.calls, health.own_calls) == ("ok", 1, 1), health
