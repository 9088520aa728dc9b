"""Why sampled tokens are not trained on: one reason for each token, the rest of the call stays."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conversation import PLAIN_SAMPLING, Conversation, drops, shapes

from polar.builders.drops import DropRules
from polar.builders.prefix_merging import PrefixMerging
from polar.types import Trajectory, logprobs


def build_one(reply: str, **fields: Any) -> Trajectory:
    talk = Conversation()
    talk.call("Su", reply, **fields)
    return PrefixMerging(DropRules()).build("s1", talk.calls)


def test_a_missing_logprob_in_mid_call_costs_only_its_token() -> None:
    trajectory = build_one("abcde", logprobs=logprobs([-0.5, math.nan, math.nan, -0.5, -math.inf]))
    assert shapes(trajectory) == [("Su", "abcde", "^..^.")]
    assert drops(trajectory) == [("c1", 1, 2, "missing_logprob"), ("c1", 4, 1, "missing_logprob")]
    assert list(trajectory.traces[0].logprobs) == [-0.5, 0.0, 0.0, -0.5, 0.0]


def test_a_sentinel_is_a_missing_logprob() -> None:
    trajectory = build_one("ab", logprobs=logprobs([-9999.0, -0.5]))
    assert drops(trajectory) == [("c1", 0, 1, "missing_logprob")]


def test_a_logprob_above_zero_is_bad() -> None:
    trajectory = build_one("abc", logprobs=logprobs([math.nan, 0.25, -0.0]))
    assert shapes(trajectory) == [("Su", "abc", "..^")]
    assert drops(trajectory) == [("c1", 0, 1, "missing_logprob"), ("c1", 1, 1, "bad_logprob")]


def test_a_call_without_any_usable_logprob_is_no_trace() -> None:
    trajectory = build_one("ab", logprobs=logprobs([math.nan, math.nan]))
    assert trajectory.traces == ()
    assert drops(trajectory) == [("c1", 0, 2, "missing_logprob")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "aborted"}, "aborted"),
        ({"received": False}, "not_received"),
        ({"logprobs": logprobs([-0.5])}, "unequal_lengths"),
        ({"logprobs": logprobs([-0.5] * 3)}, "unequal_lengths"),
        ({"kind": "auxiliary"}, "kind:auxiliary"),
        ({"finish_reason": "aborted", "received": False, "kind": "auxiliary"}, "aborted"),
    ],
)
def test_a_whole_call_is_dropped_for_one_reason(fields: dict[str, Any], reason: str) -> None:
    trajectory = build_one("ab", **fields)
    assert trajectory.traces == ()
    assert drops(trajectory) == [("c1", 0, 2, reason)]


@pytest.mark.parametrize("setting", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}])
def test_raw_logprobs_of_sampling_that_is_not_plain_are_not_those_sampled_from(
    setting: dict[str, float],
) -> None:
    sampling = PLAIN_SAMPLING | setting
    assert drops(build_one("ab", sampling=sampling)) == [("c1", 0, 2, "sampling_not_plain")]
    assert build_one("ab", sampling=sampling, logprob_mode="processed").dropped == ()


def test_what_nobody_recorded_is_not_plain() -> None:
    assert drops(build_one("ab", sampling={"temperature": 1.0})) == [("c1", 0, 2, "sampling_not_plain")]
    assert drops(build_one("ab", logprob_mode="")) == [("c1", 0, 2, "sampling_not_plain")]


@pytest.mark.parametrize("schema", [{"type": "object"}, {}])
def test_a_reply_held_to_a_schema_was_not_drawn_from_the_whole_distribution(schema: dict[str, Any]) -> None:
    sampling = PLAIN_SAMPLING | {"json_schema": schema}
    assert drops(build_one("ab", sampling=sampling)) == [("c1", 0, 2, "constrained")]
    assert drops(build_one("ab", sampling=sampling, logprob_mode="")) == [("c1", 0, 2, "constrained")]
    assert build_one("ab", sampling=sampling, logprob_mode="processed").dropped == ()


def test_no_schema_is_no_constraint() -> None:
    assert build_one("ab", sampling=PLAIN_SAMPLING | {"json_schema": None}).dropped == ()


def test_other_settings_do_not_change_the_distribution() -> None:
    assert build_one("ab", sampling=PLAIN_SAMPLING | {"seed": 7, "max_tokens": 20}).dropped == ()


@pytest.mark.parametrize("kind", ["agent", "subagent", "compaction"])
def test_work_is_trainable_by_default(kind: str) -> None:
    assert build_one("ab", kind=kind).traces[0].kind == kind
