"""vLLM's two routes: bodies, and which logprob is whose."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from contracts.engine_contract import ask
from polar.engines.remote.server import reason_of
from polar.engines.vllm.protocol import (
    COMPLETIONS,
    GENERATE,
    VllmChoice,
    generation_body,
    last_piece,
    paired,
    score_body,
)
from polar.errors import EngineDefect
from polar.types import PolicySpan


def choice(**fields: Any) -> VllmChoice:
    return msgspec.convert(fields, VllmChoice)


def test_the_route_for_tokens_gets_ids_and_sampling_apart() -> None:
    body = generation_body(GENERATE, "m", ask([1, 2, 3], seed=5, temperature=0.7), max_tokens=9, prompt=[1, 2, 3])
    assert (body["token_ids"], body["model"], body["stream"]) == ([1, 2, 3], "m", True)
    knobs = body["sampling_params"]
    assert (knobs["temperature"], knobs["max_tokens"], knobs["seed"], knobs["logprobs"]) == (0.7, 9, 5, 0)
    assert knobs["detokenize"] is False
    assert "prompt" not in body


def test_completions_get_ids_without_special_tokens_added() -> None:
    body = generation_body(COMPLETIONS, "m", ask([1, 2, 3], stop_ids=(2,)), max_tokens=9, prompt=[1, 2, 3])
    assert (body["prompt"], body["add_special_tokens"], body["return_token_ids"]) == ([1, 2, 3], False, True)
    assert (body["max_tokens"], body["stop_token_ids"], body["logprobs"]) == (9, [2], 0)
    assert "sampling_params" not in body


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_the_plain_distribution_is_asked_for_by_name(route: Any) -> None:
    body = generation_body(route, "m", ask([1]), max_tokens=1, prompt=[1])
    knobs = body.get("sampling_params", body)
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "min_tokens": 0, "ignore_eos": False}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {**plain, **penalties}.items() <= knobs.items()


@pytest.mark.parametrize(("schema", "sent"), [({"const": 1}, {"const": 1}), ({}, {"type": "object"})])
def test_a_schema_is_sent_and_an_empty_one_is_any_object(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    body = generation_body(GENERATE, "m", ask([1], json_schema=schema), max_tokens=1, prompt=[1])
    assert body["sampling_params"]["structured_outputs"] == {"json": sent}


def test_without_a_schema_the_body_has_no_schema_field() -> None:
    assert "structured_outputs" not in generation_body(COMPLETIONS, "m", ask([1]), max_tokens=1, prompt=[1])


def test_a_score_asks_for_the_prompts_own_logprobs() -> None:
    body = score_body(COMPLETIONS, "m", [1, 2])
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"]) == ([1, 2], 0, 1)
    assert score_body(GENERATE, "m", [1, 2])["sampling_params"]["prompt_logprobs"] == 0


def test_logprobs_are_paired_by_their_ids() -> None:
    named = {"content": [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -0.25}]}
    assert paired(choice(token_ids=[5, 6], logprobs=named)) == ([5, 6], [-0.5, -0.25])
    older = {"content": [{"token": "token_id:5", "logprob": -0.5}]}
    assert paired(choice(token_ids=[5], logprobs=older)) == ([5], [-0.5])
    listed = {"tokens": ["token_id:5"], "token_logprobs": [-0.5]}
    assert paired(choice(token_ids=[5], logprobs=listed)) == ([5], [-0.5])


@pytest.mark.parametrize("value", [None, -9999.0])
def test_what_stands_for_a_logprob_is_none(value: float | None) -> None:
    ids, values = paired(choice(token_ids=[5], logprobs={"content": [{"token_id": 5, "logprob": value}]}))
    assert ids == [5]
    assert math.isnan(values[0])


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": []},
        {"content": [{"token_id": 6, "logprob": -0.5}]},
        {"content": [{"token": "a", "logprob": -0.5}]},
        {"tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.5, -0.5]},
        {"tokens": ["a"], "token_logprobs": [-0.5]},
    ],
    ids=["absent", "empty", "of-another", "unnamed", "too-many", "text"],
)
def test_logprobs_that_are_not_the_ids_own_are_a_defect(logprobs: Any) -> None:
    with pytest.raises(EngineDefect, match="do not belong together"):
        paired(choice(token_ids=[5], logprobs=logprobs))


def test_an_event_may_hold_nothing_but_the_end() -> None:
    assert paired(choice(token_ids=[], finish_reason="stop")) == ([], [])
    assert paired(choice(finish_reason="stop", logprobs={"content": []})) == ([], [])


def test_the_end_of_a_reply_tells_which_weights_sampled_what() -> None:
    reported = [{"version": "a", "start": 0, "end": 3}, {"version": "b", "start": 3, "end": 5}]
    piece = last_piece(choice(finish_reason="stop", weight_versions=reported), None, before=4)
    assert piece.policy_version == "b"
    assert piece.policy_spans == (PolicySpan("a", 0, 3), PolicySpan("b", 3, 2))


def test_a_single_version_covers_the_whole_reply_also_without_ids_at_its_end() -> None:
    reported = [{"version": "a", "start": 0, "end": 3}]
    piece = last_piece(choice(token_ids=[], finish_reason="stop", weight_versions=reported), None, before=3)
    assert (piece.policy_version, piece.policy_spans) == ("", (PolicySpan("a", 0, 3),))


def test_a_server_without_a_set_version_reports_none() -> None:
    reported = [{"version": "default", "start": 0, "end": 3}]
    piece = last_piece(choice(finish_reason="stop", weight_versions=reported), None, before=2)
    assert (piece.policy_version, piece.policy_spans) == ("", ())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"message": "too long"}', "too long"),
        (b'{"detail": "Forbidden"}', "Forbidden"),
        (b"<html>bad gateway", "<html>bad gateway"),
        (b"", "no reason given"),
    ],
)
def test_a_reason_is_found_in_the_usual_places(payload: bytes, reason: str) -> None:
    assert reason_of(payload) == reason


def test_events_that_arrived_together_are_paired_together() -> None:
    named = [choice(token_ids=[n], logprobs={"content": [{"token_id": n, "logprob": -n}]}) for n in (1, 2, 3)]
    assert paired(*named) == ([1, 2, 3], [-1.0, -2.0, -3.0])
    listed = [
        choice(token_ids=[n], logprobs={"tokens": [f"token_id:{n}"], "token_logprobs": [-n]}) for n in (1, 2, 3)
    ]
    assert paired(*listed) == ([1, 2, 3], [-1.0, -2.0, -3.0])
    with pytest.raises(EngineDefect, match="3 ids and 2 logprobs"):
        paired(*named[:2], choice(token_ids=[3]))
