"""Why sampled tokens are not trained on: one reason for each token, the rest of the call stays."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conversation import PLAIN_SAMPLING, Conversation, drops, shapes

from polar import registry
from polar.audit.certificate import certify
from polar.builders.drift import DriftOptions
from polar.builders.prefix_merging import PrefixMerging
from polar.types import EndpointUsage, PolicySpan, Span, Spec, Trace, Trajectory, logprobs, loss_mask


def build_one(reply: str, **fields: Any) -> Trajectory:
    talk = Conversation()
    talk.call("Su", reply, **fields)
    return PrefixMerging(DriftOptions()).build("s1", talk.calls)


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


def test_a_setting_that_was_not_recorded_is_not_plain() -> None:
    assert drops(build_one("ab", sampling={"temperature": 1.0})) == [("c1", 0, 2, "sampling_not_plain")]
    assert drops(build_one("ab", logprob_mode="")) == [("c1", 0, 2, "sampling_not_plain")]


@pytest.mark.parametrize("schema", [{"type": "object"}, {}])
def test_a_reply_held_to_a_schema_was_not_drawn_from_the_whole_distribution(schema: dict[str, Any]) -> None:
    sampling = PLAIN_SAMPLING | {"json_schema": schema}
    assert drops(build_one("ab", sampling=sampling)) == [("c1", 0, 2, "constrained")]
    assert drops(build_one("ab", sampling=sampling, logprob_mode="")) == [("c1", 0, 2, "constrained")]
    assert drops(build_one("ab", sampling=sampling, logprob_mode="processed")) == [("c1", 0, 2, "constrained")]


def test_no_schema_is_no_constraint() -> None:
    assert build_one("ab", sampling=PLAIN_SAMPLING | {"json_schema": None}).dropped == ()


def test_other_settings_do_not_change_the_distribution() -> None:
    assert build_one("ab", sampling=PLAIN_SAMPLING | {"seed": 7, "max_tokens": 20}).dropped == ()


@pytest.mark.parametrize("kind", ["agent", "subagent", "compaction"])
def test_work_is_trainable_by_default(kind: str) -> None:
    assert build_one("ab", kind=kind).traces[0].kind == kind


@pytest.mark.parametrize(
    "fields",
    [
        {"updated_within": True},
        {"policy_spans": (PolicySpan("v1", 0, 1),)},
        {"policy_spans": (PolicySpan("v1", 0, 1), PolicySpan("v2", 2, 1))},
        {"policy_spans": (PolicySpan("v1", 0, 2), PolicySpan("v2", 1, 1))},
        {"policy_spans": (PolicySpan("v1", 0, 3),)},
        {"policy_spans": (PolicySpan("v1", 0, 0), PolicySpan("v2", 0, 2))},
    ],
    ids=["position unknown", "too short", "gap", "overlap", "too long", "empty"],
)
def test_tokens_whose_policy_version_is_not_known_are_not_trained_on(fields: dict[str, Any]) -> None:
    trajectory = build_one("ab", policy_version="v1", **fields)
    assert trajectory.traces == ()
    assert drops(trajectory) == [("c1", 0, 2, "mixed_versions")]


def test_a_reply_of_two_versions_is_trained_on_where_each_token_has_one() -> None:
    spans = (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 2))
    (trace,) = build_one("abc", policy_version="v1", policy_spans=spans).traces
    assert trace.trainable_tokens == 3
    assert trace.spans == (Span("c1", 0, 3, "v1", spans),)
    assert trace.spans[0].versions == spans
    assert trace.policy_versions == ("v1", "v2")


def test_a_reply_of_one_version_tells_it_for_all_its_tokens() -> None:
    (trace,) = build_one("abc", policy_version="v1").traces
    assert trace.spans[0].versions == (PolicySpan("v1", 0, 3),)
    assert trace.policy_versions == ("v1",)


LENIENT = {"trainable_kinds": ["agent", "subagent", "compaction", "auxiliary"], "superseded": "keep"}


@pytest.mark.parametrize("builder", ["prefix_merging", "per_request", "tree"])
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["default", "lenient"])
def test_a_call_of_an_endpoint_is_never_trained_on_whatever_it_claims_to_have(
    builder: str, options: dict[str, Any]
) -> None:
    """Not even one with ids and perfect logprobs, alone or among calls of an engine."""
    talk = Conversation()
    first = talk.call("Su", "ab", usage=EndpointUsage(2, 2))
    second = talk.call("v", "cd", first, usage=EndpointUsage())
    trajectory = registry.make("builder", Spec(name=builder, options=options)).build("s1", talk.calls)
    assert trajectory.traces == () and certify(talk.calls, trajectory).findings == 0
    assert drops(trajectory) == [("c1", 0, 2, "no_token_ids"), ("c2", 0, 2, "no_token_ids")]
    talk.call("w", "ef", second)
    mixed = registry.make("builder", Spec(name=builder, options=options)).build("s1", talk.calls)
    assert [trace.trainable_tokens for trace in mixed.traces] == [2], "the engine's own tokens"


def test_a_builder_that_trains_on_an_endpoint_s_call_is_found_out() -> None:
    talk = Conversation()
    call = talk.call("Su", "ab", usage=EndpointUsage(2, 2))
    forged = Trace(
        session_id="s1",
        prompt_ids=call.new_prompt_ids,
        response_ids=call.completion_ids,
        loss_mask=loss_mask([1, 1]),
        logprobs=call.logprobs,
        spans=(Span(call.call_id, 0, 2),),
    )
    certificate = certify(talk.calls, Trajectory("s1", "forger", (forged,)))
    assert not certificate.exact and "not_trainable" in certificate.reasons


def test_a_call_without_any_token_is_unsound_unless_an_endpoint_made_it() -> None:
    talk = Conversation()
    talk.call("", "", usage=EndpointUsage())
    assert drops(PrefixMerging(DriftOptions()).build("s1", talk.calls)) == [("c1", 0, 0, "no_token_ids")]
    bare = Conversation()
    bare.call("", "")
    with pytest.raises(ValueError, match="empty prompt"):
        PrefixMerging(DriftOptions()).build("s1", bare.calls)
