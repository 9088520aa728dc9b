"""Conversations whose prompts drift at random: whatever the rule, each sampled token comes out once; healed traces
are what the engine had, and a spliced one says that it is not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from conversation import Conversation, letters
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_exactly_once import conversations, faults, placed

from polar.audit.certificate import examine
from polar.builders.base import Builder
from polar.builders.drift import DriftOptions, DriftRule
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree, TreeOptions
from polar.types import Call, PolicySpan, Trajectory
from polar.types.packed import packed, unpacked

BUILDERS: dict[str, Builder] = {
    rule: PrefixMerging(DriftOptions(drift=rule)) for rule in ("fork", "heal", "splice")
} | {"tree": Tree(TreeOptions())}
words = st.text("abcd", min_size=1, max_size=6)


def respelled(draw: st.DrawFn, context: str) -> str:
    """The context with something in it exchanged, lost or put in, mostly near its end."""
    start = draw(st.integers(max(0, len(context) - 8), len(context)) | st.integers(0, len(context)))
    stop = draw(st.integers(start, len(context)))
    return context[:start] + draw(st.text("abcdX$", max_size=4)) + context[stop:]


def versions(draw: st.DrawFn, reply: str) -> tuple[PolicySpan, ...]:
    first = draw(st.integers(0, len(reply)))
    parts = [("v1", 0, first), ("v2", first, len(reply) - first)]
    return tuple(PolicySpan(*part) for part in parts if part[2])


@st.composite
def drifting(draw: st.DrawFn) -> Conversation:
    talk = Conversation()
    for _ in range(draw(st.integers(1, 10))):
        after = draw(st.sampled_from([talk.calls[-1]] * 4 + talk.calls)) if talk.calls else None
        reply = draw(words) + draw(st.sampled_from(["$", "$", ""]))
        changes: dict[str, Any] = dict(draw(faults)) if draw(st.integers(0, 5)) == 0 else {}
        if draw(st.booleans()):
            changes["policy_spans"] = versions(draw, reply)
        if after is None or draw(st.integers(0, 2)) == 0:
            talk.call("S" + draw(words), reply, after=after, **changes)
            continue
        prompt = respelled(draw, talk.full_prompt(after) + letters(after.completion_ids)) + "U" + draw(words)
        talk.call(prompt, reply, after=after, continues=False, **({"break_reason": "retokenised"} | changes))
    return talk


def build(rule: str, talk: Conversation) -> Trajectory:
    return BUILDERS[rule].build("s1", talk.calls)


@pytest.mark.parametrize("rule", BUILDERS)
@settings(max_examples=150, deadline=None)
@given(talk=drifting())
def test_each_sampled_token_comes_out_exactly_once(rule: str, talk: Conversation) -> None:
    sampled = [(call.call_id, position) for call in talk.calls for position in range(len(call.completion_ids))]
    assert placed(build(rule, talk)) == Counter(sampled)


@pytest.mark.parametrize("rule", ["fork", "heal", "tree"])
@settings(max_examples=150, deadline=None)
@given(talk=drifting())
def test_each_trained_token_has_the_context_that_was_sent(rule: str, talk: Conversation) -> None:
    calls: dict[str, Call] = {call.call_id: call for call in talk.calls}
    trajectory = build(rule, talk)
    for trace in trajectory.traces:
        for span in trace.spans:
            context = letters(trace.prompt_ids) + letters(trace.response_ids[: span.start])
            assert context == talk.full_prompt(calls[span.call_id])
            found = trace.response_ids[span.start : span.start + span.length]
            assert found == calls[span.call_id].completion_ids[: span.length]
        assert trace.context_exact and 1 in trace.loss_mask
    certificate, findings = examine(talk.calls, trajectory)
    assert findings == () and certificate.exact


@settings(max_examples=150, deadline=None)
@given(talk=drifting())
def test_a_splice_is_flagged_wherever_the_context_is_not_what_was_sent(talk: Conversation) -> None:
    calls: dict[str, Call] = {call.call_id: call for call in talk.calls}
    trajectory = build("splice", talk)
    for trace in trajectory.traces:
        contexts = [letters(trace.prompt_ids + trace.response_ids[: span.start]) for span in trace.spans]
        sent = [talk.full_prompt(calls[span.call_id]) for span in trace.spans]
        assert contexts == sent or not trace.context_exact
    certificate, findings = examine(talk.calls, trajectory)
    assert findings == ()
    assert certificate.inexact_traces == trajectory.statistics["inexact_traces"]
    assert certificate.exact == (certificate.inexact_traces == 0)
    assert not any(drop.reason == "healed" for drop in trajectory.dropped)


@pytest.mark.parametrize("rule", ["heal", "splice"])
@settings(max_examples=150, deadline=None)
@given(talk=drifting())
def test_every_drift_is_named_and_repairing_costs_only_what_it_says(rule: str, talk: Conversation) -> None:
    forked, mended = build("fork", talk), build(rule, talk)
    assert len(mended.traces) <= len(forked.traces)
    assert {entry.call_id for entry in forked.breaks} >= {entry.call_id for entry in mended.breaks}
    silent = {entry.call_id for entry in forked.breaks} - {entry.call_id for entry in mended.breaks}
    assert not any(call.break_reason for call in talk.calls if call.call_id in silent)
    healed = sum(drop.length for drop in mended.dropped if drop.reason == "healed")
    assert forked.statistics["trainable_tokens"] == mended.statistics["trainable_tokens"] + healed
    assert forked.statistics["append_only_pairs"] == mended.statistics["append_only_pairs"]


@settings(max_examples=200, deadline=None)
@given(talk=drifting(), data=st.data())
def test_whatever_single_value_of_a_healed_trace_is_changed_it_is_found(talk: Conversation, data: Any) -> None:
    healed = build("heal", talk)
    shortened = [index for index, trace in enumerate(healed.traces) if _is_mended(trace.spans, talk)]
    assume(shortened)
    index = data.draw(st.sampled_from(shortened))
    trace = healed.traces[index]
    name = data.draw(st.sampled_from(["prompt_ids", "response_ids", "loss_mask", "logprobs"]))
    values = getattr(trace, name)[:]
    position = data.draw(st.integers(0, len(values) - 1))
    flipped = {"loss_mask": 1 - values[position], "logprobs": values[position] - 1}
    values[position] = flipped.get(name, values[position] + 1)
    altered = msgspec.structs.replace(trace, **{name: values})
    traces = (*healed.traces[:index], altered, *healed.traces[index + 1 :])
    certificate, findings = examine(talk.calls, msgspec.structs.replace(healed, traces=traces))
    assert findings and not certificate.exact


def _is_mended(spans: Any, talk: Conversation) -> bool:
    size = {call.call_id: len(call.completion_ids) for call in talk.calls}
    return any(span.length < size[span.call_id] for span in spans)


@pytest.mark.parametrize("rule", BUILDERS)
@settings(max_examples=60, deadline=None)
@given(talk=drifting())
def test_the_file_gives_back_what_was_built(rule: str, talk: Conversation) -> None:
    trajectory = build(rule, talk)
    assert unpacked(packed(trajectory)) == trajectory


@pytest.mark.parametrize("rule", ["heal", "splice"])
@settings(max_examples=60, deadline=None)
@given(talk=conversations())
def test_what_does_not_drift_comes_out_as_ever(rule: DriftRule, talk: Conversation) -> None:
    certificate, findings = examine(talk.calls, build(rule, talk))
    assert findings == ()
    assert certificate.sampled_tokens == certificate.trainable_tokens + certificate.dropped_tokens
