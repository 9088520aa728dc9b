"""One command, everything real: pi, llama.cpp with SmolLM2's weights, the local runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from real_run import calls_of, polar_run

from polar.store.trajectories import read_trajectory
from polar.types import Message

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"
EVALUATED_BEYOND_NEW = 8
"""The engine may compute a few tokens again where a new turn meets its cache."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return polar_run(tmp_path_factory.mktemp("demo"), DEMO, "--samples", "2")


def test_every_session_has_its_result(run: dict[str, Any]) -> None:
    assert len(run["results"]) == 8
    for result in run["results"]:
        assert result["stage"] == "COMPLETED" or result["failure"]["policy"], result
        assert result["score"]["reward"] in (0.0, 1.0)
        assert result["versions"]["harness"] == "pi 1.5.0"
    assert list(run["root"].glob("sessions/*/place")) == []


def test_trainable_tokens_are_the_sampled_ones_each_once(run: dict[str, Any]) -> None:
    for result in run["results"]:
        trajectory = read_trajectory(run["root"] / result["traces"])
        assert_exactly_once(calls_of(run, result["session_id"]), trajectory)
        assert result["statistics"]["merge_rate"] in (None, 1.0)


def test_the_model_uses_its_tools(run: dict[str, Any]) -> None:
    """Of a free model only a little can be asked: that some session went on with what its tool said."""
    results_of_tools = [
        message
        for result in run["results"]
        for call in calls_of(run, result["session_id"])
        for message in call.new_messages
        if isinstance(message, Message) and message.role == "tool"
    ]
    assert results_of_tools


def test_a_later_turn_evaluates_only_what_is_new(run: dict[str, Any]) -> None:
    continued = [
        call for result in run["results"] for call in calls_of(run, result["session_id"]) if call.continues
    ]
    assert continued
    for call in continued:
        # The last sampled token of the turn before is not in the cache yet.
        assert call.evaluated_tokens is not None
        assert call.evaluated_tokens <= len(call.new_prompt_ids) + EVALUATED_BEYOND_NEW


def test_no_token_lacks_its_logprob(run: dict[str, Any]) -> None:
    assert run["dropped_tokens"] == 0 or all(
        "missing_logprob" not in result["statistics"]["dropped"] for result in run["results"]
    )
