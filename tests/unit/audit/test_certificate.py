"""The certificate: a builder's output checked against the calls, independently of the builder."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conversation import Conversation, ids
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_exactly_once import BUILDERS, conversations

from polar.audit.certificate import certify, examine
from polar.builders.base import Builder
from polar.builders.drift import DriftOptions
from polar.builders.prefix_merging import PrefixMerging
from polar.types import Certificate, Dropped, PolicySpan, Span, Trace, Trajectory, logprobs, loss_mask


def talk_of_three() -> Conversation:
    talk = Conversation()
    first = talk.call("Su", "ab", logprobs=logprobs([-0.25, -0.5]))
    talk.call("Tv", "cd", after=first, logprobs=logprobs([-0.75, -1.0]), policy_version="v2")
    talk.call("Su", "zz", received=False)
    return talk


def build(talk: Conversation) -> Trajectory:
    return PrefixMerging(DriftOptions()).build("s1", talk.calls)


def changed(trajectory: Trajectory, **changes: Any) -> Trajectory:
    """The first trace, with other fields."""
    first = msgspec.structs.replace(trajectory.traces[0], **changes)
    return msgspec.structs.replace(trajectory, traces=(first, *trajectory.traces[1:]))


def violations(talk: Conversation, trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(finding.what, finding.where) for finding in examine(talk.calls, trajectory)[1]]


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: type(builder).__name__)
@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_every_builder_is_exact_whatever_the_calls(builder: Builder, talk: Conversation) -> None:
    certificate, findings = examine(talk.calls, builder.build("s1", talk.calls))
    assert findings == ()
    assert certificate.exact
    assert certificate.sampled_tokens == certificate.trainable_tokens + certificate.dropped_tokens


@st.composite
def alterations(draw: st.DrawFn) -> tuple[Conversation, Trajectory, Trajectory]:
    """A session, its trajectory, and the same with one value changed somewhere."""
    talk = draw(conversations())
    trajectory = draw(st.sampled_from(BUILDERS)).build("s1", talk.calls)
    lost = [drop for drop in trajectory.dropped if drop.length]
    assume(trajectory.traces or lost)
    if lost and (not trajectory.traces or draw(st.integers(0, 4)) == 0):
        gone = draw(st.sampled_from(lost))
        kept = tuple(drop for drop in trajectory.dropped if drop is not gone)
        return talk, trajectory, msgspec.structs.replace(trajectory, dropped=kept)
    index = draw(st.integers(0, len(trajectory.traces) - 1))
    trace = trajectory.traces[index]
    name = draw(st.sampled_from(["prompt_ids", "response_ids", "loss_mask", "logprobs"]))
    values = getattr(trace, name)[:]
    position = draw(st.integers(0, len(values) - 1))
    values[position] = {"loss_mask": 1 - values[position], "logprobs": values[position] - 1}.get(
        name, values[position] + 1
    )
    altered = msgspec.structs.replace(trace, **{name: values})
    traces = (*trajectory.traces[:index], altered, *trajectory.traces[index + 1 :])
    return talk, trajectory, msgspec.structs.replace(trajectory, traces=traces)


@settings(max_examples=300, deadline=None)
@given(case=alterations())
def test_whatever_single_value_is_changed_it_is_found(case: tuple[Conversation, Trajectory, Trajectory]) -> None:
    talk, sound, altered = case
    made = certify(talk.calls, altered)
    assert made.findings > 0 and not made.exact
    assert made.traces_digest != certify(talk.calls, sound).traces_digest


def test_the_certificate_counts_and_names_its_builder() -> None:
    talk = talk_of_three()
    certificate = certify(talk.calls, build(talk))
    assert certificate.model_dump(exclude={"calls_digest", "traces_digest", "records_digest"}) == {
        "builder": "prefix_merging",
        "builder_version": "2",
        "calls": 3,
        "traces": 1,
        "sampled_tokens": 6,
        "trainable_tokens": 4,
        "dropped_tokens": 2,
        "inexact_traces": 0,
        "findings": 0,
        "reasons": {},
        "exact": True,
    }
    assert Certificate.model_validate_json(certificate.model_dump_json()) == certificate


def test_the_digests_are_those_of_the_tokens_and_not_of_the_reward() -> None:
    talk = talk_of_three()
    trajectory = build(talk)
    certificate = certify(talk.calls, trajectory)
    assert certify(talk.calls, changed(trajectory, reward=1.0)) == certificate
    assert certify(talk.calls[:2], trajectory).calls_digest != certificate.calls_digest
    other = changed(trajectory, response_ids=ids("abTvcx"))
    assert certify(talk.calls, other).traces_digest != certificate.traces_digest
    assert certify(talk.calls, other).calls_digest == certificate.calls_digest


def test_no_calls_and_no_traces_are_exact() -> None:
    assert certify([], Trajectory("s1", "none")).exact


ALTERATIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt_ids": ids("Sx")}, "context", "trace 0, before call c1, token 1 of the sequence"),
    ({"prompt_ids": ids("Suu")}, "context", "trace 0, before call c1, token 2 of the sequence"),
    ({"response_ids": ids("abTwcd")}, "context", "trace 0, before call c2, token 5 of the sequence"),
    ({"response_ids": ids("abTvcx")}, "tokens", "trace 0, position 5"),
    ({"loss_mask": loss_mask([1, 1, 1, 0, 1, 1])}, "mask", "trace 0, position 2"),
    ({"logprobs": logprobs([-0.5, -0.25, 0, 0, -0.75, -1])}, "logprob", "trace 0, position 0"),
    ({"logprobs": logprobs([-0.25, -0.5000001, 0, 0, -0.75, -1])}, "logprob", "trace 0, position 1"),
    ({"logprobs": logprobs([-0.25, -0.5, 0, -1, -0.75, -1])}, "logprob", "trace 0, position 3"),
    ({"spans": (Span("c1", 0, 2), Span("c2", 4, 2, "v1"))}, "span", "trace 0, position 4"),
    ({"spans": (Span("c1", 0, 2), Span("c9", 4, 2, "v2"))}, "span", "trace 0, position 4"),
    ({"spans": (Span("c1", 0, 2), Span("c2", 4, 3, "v2"))}, "span", "trace 0, call c2"),
    ({"spans": (Span("c1", 0, 3), Span("c2", 4, 2, "v2"))}, "span", "trace 0, position 0"),
    ({"spans": (Span("c1", -1, 2), Span("c2", 4, 2, "v2"))}, "span", "trace 0, call c1"),
    ({"kind": "subagent"}, "kind", "trace 0"),
    ({"session_id": "s2"}, "session", "trace 0"),
    ({"metadata": {"branch": {"trace": 0, "tokens": 1}}}, "branch", "trace 0"),
]


@pytest.mark.parametrize(("changes", "what", "where"), ALTERATIONS)
def test_one_altered_thing_is_found_where_it_is(changes: dict[str, Any], what: str, where: str) -> None:
    talk = talk_of_three()
    trajectory = changed(build(talk), **changes)
    assert violations(talk, trajectory)[0] == (what, where)
    certificate = certify(talk.calls, trajectory)
    assert not certificate.exact
    assert certificate.findings == sum(certificate.reasons.values()) > 0


def test_a_finding_says_what_was_expected_and_what_was_found() -> None:
    talk = talk_of_three()
    (first, *_) = examine(talk.calls, changed(build(talk), response_ids=ids("abTwcd")))[1]
    assert (first.expected, first.found) == (f"id {ord('v')}", f"id {ord('w')}")


def test_a_shifted_mask_is_found_twice_over() -> None:
    """One token is missing, one was not sampled."""
    talk = talk_of_three()
    shifted = changed(
        build(talk),
        loss_mask=loss_mask([1, 1, 0, 1, 1, 0]),
        logprobs=logprobs([-0.25, -0.5, 0, -1, -0.75, 0]),
    )
    assert ("mask", "trace 0, position 3") in violations(talk, shifted)
    assert ("coverage", "call c2, positions 1 to 1") in violations(talk, shifted)


def test_a_reply_is_not_cut_short_for_nothing() -> None:
    """Only what a later prompt overwrites may be left out of a trace, also where the account adds up."""
    talk = talk_of_three()
    trajectory = changed(
        build(talk),
        response_ids=ids("abTvc"),
        loss_mask=loss_mask([1, 1, 0, 0, 1]),
        logprobs=logprobs([-0.25, -0.5, 0, 0, -0.75]),
        spans=(Span("c1", 0, 2), Span("c2", 4, 1, "v2")),
    )
    dropped = (*trajectory.dropped, Dropped("c2", 1, 1, "healed"))
    assert violations(talk, msgspec.structs.replace(trajectory, dropped=dropped)) == [
        ("span", "trace 0, position 4")
    ]


def test_tokens_after_the_last_span_were_never_sent() -> None:
    talk = talk_of_three()
    longer = changed(
        build(talk),
        response_ids=ids("abTvcd!"),
        loss_mask=loss_mask([1, 1, 0, 0, 1, 1, 0]),
        logprobs=logprobs([-0.25, -0.5, 0, 0, -0.75, -1, 0]),
    )
    assert violations(talk, longer) == [("context", "trace 0, position 6")]


def test_a_removed_trace_and_a_doubled_one_are_found() -> None:
    talk = talk_of_three()
    trajectory = build(talk)
    none = msgspec.structs.replace(trajectory, traces=())
    assert violations(talk, none) == [
        ("coverage", "call c1, positions 0 to 1"),
        ("coverage", "call c2, positions 0 to 1"),
    ]
    twice = msgspec.structs.replace(trajectory, traces=trajectory.traces * 2)
    assert [finding.found for finding in examine(talk.calls, twice)[1]] == ["2 times", "2 times"]


@pytest.mark.parametrize(
    ("dropped", "where"),
    [
        ((), "call c3, positions 0 to 1"),
        ((Dropped("c3", 0, 1, "not_received"),), "call c3, positions 1 to 1"),
        ((Dropped("c3", 0, 2, "not_received"), Dropped("c1", 0, 1, "x")), "call c1, positions 0 to 0"),
        ((Dropped("c3", 0, 2, ""),), "dropped of call c3, position 0"),
        ((Dropped("c3", 0, 3, "not_received"),), "dropped of call c3, position 0"),
        ((Dropped("c3", 0, 2, "not_received"), Dropped("c8", 0, 1, "x")), "dropped of call c8, position 0"),
    ],
)
def test_the_dropped_list_is_part_of_the_account(dropped: tuple[Dropped, ...], where: str) -> None:
    talk = talk_of_three()
    trajectory = msgspec.structs.replace(build(talk), dropped=dropped)
    assert ("coverage", where) in violations(talk, trajectory)


def test_what_may_not_be_trained_on_is_refused_also_where_the_account_adds_up() -> None:
    talk = Conversation()
    talk.call("Su", "ab", finish_reason="aborted")
    lying = Trajectory("s1", "mine", traces=(trace_of("Su", "ab", "c1"),))
    assert violations(talk, lying) == [("not_trainable", "trace 0, position 0")]


def test_a_trace_with_nothing_to_train_on_gets_no_reward() -> None:
    talk = Conversation()
    talk.call("Su", "ab", received=False)
    context = msgspec.structs.replace(
        trace_of("Su", "ab", "c1"), loss_mask=loss_mask([0, 0]), logprobs=logprobs([0, 0]), reward=1.0
    )
    trajectory = Trajectory("s1", "mine", (context,), (Dropped("c1", 0, 2, "not_received"),))
    assert violations(talk, trajectory) == [("reward", "trace 0")]


def test_a_prompt_that_is_not_proven_cannot_be_trained_on() -> None:
    talk = Conversation()
    talk.call("Su", "ab", prompt_digest=b"of another prompt")
    lying = Trajectory("s1", "mine", traces=(trace_of("Su", "ab", "c1"),))
    assert violations(talk, lying) == [("context", "trace 0, before call c1"), ("prompt_unproven", "call c1")]


def test_calls_that_do_not_hang_together_are_findings_and_no_exception() -> None:
    talk = talk_of_three()
    first, second, third = talk.calls
    trajectory = build(talk)
    found = [finding.what for finding in examine([second, first, first, third], trajectory)[1]]
    assert found.count("calls_unsound") == 2
    assert "prompt_unproven" in found


def test_a_trace_that_says_it_is_inexact_is_believed_and_counted() -> None:
    talk = talk_of_three()
    spliced = changed(build(talk), response_ids=ids("abTwcd"), context_exact=False)
    certificate, findings = examine(talk.calls, spliced)
    assert findings == ()
    assert (certificate.exact, certificate.inexact_traces) == (False, 1)


TWO_VERSIONS = (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 2))


@pytest.mark.parametrize(
    "spans",
    [
        (),
        (PolicySpan("v2", 0, 1), PolicySpan("v1", 1, 2)),
        (PolicySpan("v1", 0, 2), PolicySpan("v2", 2, 1)),
        (PolicySpan("v1", 0, 1),),
        (*TWO_VERSIONS, PolicySpan("v3", 3, 1)),
    ],
    ids=["none", "swapped", "moved", "one lost", "one more"],
)
def test_each_token_has_the_version_that_sampled_it(spans: tuple[PolicySpan, ...]) -> None:
    talk = Conversation()
    talk.call("Su", "abc", policy_version="v1", policy_spans=TWO_VERSIONS)
    sound = build(talk)
    assert certify(talk.calls, sound).exact
    altered = changed(sound, spans=(Span("c1", 0, 3, "v1", spans),))
    assert violations(talk, altered) == [("span", "trace 0, position 0")]
    assert certify(talk.calls, altered).traces_digest != certify(talk.calls, sound).traces_digest


def test_tokens_of_a_reply_within_which_the_policy_changed_are_refused() -> None:
    talk = Conversation()
    talk.call("Su", "ab", updated_within=True)
    lying = Trajectory("s1", "mine", traces=(trace_of("Su", "ab", "c1"),))
    assert violations(talk, lying) == [("not_trainable", "trace 0, position 0")]


def trace_of(prompt: str, reply: str, call_id: str) -> Trace:
    size = len(reply)
    return Trace(
        session_id="s1",
        prompt_ids=ids(prompt),
        response_ids=ids(reply),
        loss_mask=loss_mask([1] * size),
        logprobs=logprobs([-0.5] * size),
        spans=(Span(call_id, 0, size),),
    )
