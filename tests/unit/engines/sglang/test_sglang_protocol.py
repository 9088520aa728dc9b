"""SGLang's `/generate`: bodies, and what of an event is new."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from contracts.engine_contract import ask
from polar.engines.sglang.protocol import ReplyProgress, SglangEvent, generation_body, score_body
from polar.errors import EngineDefect
from polar.types import PolicySpan


def event(ids: list[int], count: int, **more: Any) -> SglangEvent:
    """An event with these ids, each with a logprob made of it, when `count` were sampled in all."""
    meta = {"completion_tokens": count, "output_token_logprobs": [[-i / 10, i, None] for i in ids], **more}
    return msgspec.convert({"output_ids": ids, "meta_info": meta}, SglangEvent)


def test_cumulative_events_give_only_what_is_new() -> None:
    progress = ReplyProgress()
    assert progress.new(event([5], 1)) == ([5], [-0.5])
    assert progress.new(event([5, 6, 7], 3)) == ([6, 7], [-0.6, -0.7])
    assert progress.new(event([5, 6, 7], 3)) == ([], [])


def test_incremental_events_are_new_as_they_are() -> None:
    progress = ReplyProgress()
    assert progress.new(event([5, 5], 2)) == ([5, 5], [-0.5, -0.5])
    assert progress.new(event([6], 3)) == ([6], [-0.6])
    assert progress.new(event([7, 8], 5)) == ([7, 8], [-0.7, -0.8])


def test_unreported_tokens_are_a_defect() -> None:
    progress = ReplyProgress()
    progress.new(event([5], 1))
    with pytest.raises(EngineDefect, match="counts 4 sampled tokens and gave 2"):
        progress.new(event([6], 4))


def test_ids_without_their_logprobs_are_a_defect() -> None:
    with pytest.raises(EngineDefect, match="2 ids and 1 logprobs"):
        ReplyProgress().new(event([5, 6], 2, output_token_logprobs=[[-0.5, 5, None]]))


@pytest.mark.parametrize("value", [None, -3.4028234663852886e38])
def test_what_stands_for_a_logprob_is_none(value: float | None) -> None:
    ids, values = ReplyProgress().new(event([5], 1, output_token_logprobs=[[value, 5, "a"]]))
    assert ids == [5]
    assert math.isnan(values[0])


def test_the_version_is_the_one_that_sampled() -> None:
    spans = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 2}]
    meta = event([5, 6], 2, weight_version="b", weight_versions=spans).meta_info
    assert [meta.version_at(position) for position in (0, 1)] == ["a", "b"]
    assert meta.policy_spans == (PolicySpan("a", 0, 1), PolicySpan("b", 1, 1))
    single = event([5], 1, weight_version="b", weight_versions=spans[:1]).meta_info
    assert (single.version_at(0), single.policy_spans) == ("a", (PolicySpan("a", 0, 1),))
    assert event([5], 1, weight_version="b").meta_info.version_at(0) == "b"
    assert event([5], 1, weight_version="default").meta_info.version_at(0) == ""
    assert event([5], 1).meta_info.version_at(0) == ""
    assert event([5], 1, weight_version="b").meta_info.policy_spans == ()


def test_a_generation_says_all_of_its_sampling() -> None:
    body = generation_body(ask([1, 2], seed=None, stop_ids=(9,)), max_tokens=4, request_id="r", prompt=[1, 2])
    assert (body["input_ids"], body["rid"], body["stream"], body["return_logprob"]) == ([1, 2], "r", True, True)
    knobs = body["sampling_params"]
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "min_new_tokens": 0, "ignore_eos": False}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {**plain, **penalties, "max_new_tokens": 4, "stop_token_ids": [9]}.items() <= knobs.items()
    assert "sampling_seed" not in knobs


def test_a_seed_fits_into_what_the_server_takes() -> None:
    body = generation_body(ask([1], seed=2**40 + 3), max_tokens=4, request_id="r", prompt=[1])
    assert body["sampling_params"]["sampling_seed"] == 3


@pytest.mark.parametrize(("schema", "sent"), [({"const": "é"}, {"const": "é"}), ({}, {"type": "object"})])
def test_a_schema_is_sent_as_text(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    body = generation_body(ask([1], json_schema=schema), max_tokens=4, request_id="r", prompt=[1])
    assert json.loads(body["sampling_params"]["json_schema"]) == sent


def test_a_score_starts_at_the_given_position() -> None:
    body = score_body([1, 2, 3], start=1)
    assert (body["input_ids"], body["logprob_start_len"], body["stream"]) == ([1, 2, 3], 1, False)
