"""Whatever the forest of calls: each sampled token comes out once, in the context in which it was sampled."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from conversation import PLAIN_SAMPLING, Conversation, letters
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.builders.base import Builder
from polar.builders.drift import DriftOptions
from polar.builders.drops import DropRules
from polar.builders.per_request import PerRequest
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree, TreeOptions
from polar.types import Call, Trajectory, TrajectoryStatistics, logprobs
from polar.types.codec import decode, encode

BUILDERS: list[Builder] = [PrefixMerging(DriftOptions()), PerRequest(DropRules()), Tree(TreeOptions())]
BAD_LOGPROBS = [math.nan, math.inf, -math.inf, 0.5, -9999.0]

words = st.text("abcdefgh", min_size=0, max_size=4)
faults = st.sampled_from(
    [
        {"finish_reason": "aborted"},
        {"finish_reason": "length"},
        {"received": False},
        {"kind": "auxiliary"},
        {"kind": "subagent"},
        {"kind": "compaction"},
        {"sampling": PLAIN_SAMPLING | {"temperature": 0.5}},
        {"logprobs": logprobs([-0.5] * 9)},
        {"prompt_digest": b"of another prompt"},
        {"break_reason": "near_match"},
        {"new_items": ()},
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Mostly sound calls, so that chains grow, with each fault and an earlier request once more now and then."""
    talk = Conversation()
    for _ in range(draw(st.integers(0, 12))):
        after = draw(st.none() | st.sampled_from(talk.calls)) if talk.calls else None
        continues = after is not None and draw(st.integers(0, 4)) > 0
        new = draw(words) + "|"
        if talk.calls and draw(st.integers(0, 4)) == 0:
            again = draw(st.sampled_from(talk.calls))
            new, continues = letters(again.new_prompt_ids), again.continues
            after = next((call for call in talk.calls if call.call_id == again.parent_id), None)
        reply = draw(words)
        values = st.sampled_from([-0.25] * 12 + BAD_LOGPROBS)
        changes: dict[str, Any] = {
            "logprobs": logprobs(draw(st.lists(values, min_size=len(reply), max_size=len(reply))))
        }
        if draw(st.integers(0, 2)) == 0:
            changes |= draw(faults)
        talk.call(new, reply, after=after, continues=continues, **changes)
    return talk


def placed(trajectory: Trajectory) -> Counter[tuple[str, int]]:
    """Each position of each call, as often as it was trained on or dropped."""
    count: Counter[tuple[str, int]] = Counter()
    for trace in trajectory.traces:
        for span in trace.spans:
            mask = trace.loss_mask[span.start : span.start + span.length]
            count.update((span.call_id, position) for position, bit in enumerate(mask) if bit)
    for drop in trajectory.dropped:
        count.update((drop.call_id, position) for position in range(drop.start, drop.start + drop.length))
    return count


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: type(builder).__name__)
@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_each_sampled_token_comes_out_exactly_once(builder: Builder, talk: Conversation) -> None:
    trajectory = builder.build("s1", talk.calls)
    sampled = [(call.call_id, position) for call in talk.calls for position in range(len(call.completion_ids))]
    assert placed(trajectory) == Counter(sampled)


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: type(builder).__name__)
@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_each_call_has_the_context_that_was_sent(builder: Builder, talk: Conversation) -> None:
    calls: dict[str, Call] = {call.call_id: call for call in talk.calls}
    for trace in builder.build("s1", talk.calls).traces:
        in_spans = 0
        for span in trace.spans:
            call = calls[span.call_id]
            stop = span.start + span.length
            context = letters(trace.prompt_ids) + letters(trace.response_ids[: span.start])
            assert context == talk.full_prompt(call)
            assert trace.response_ids[span.start : stop] == call.completion_ids
            for position in range(span.start, stop):
                if trace.loss_mask[position]:
                    assert trace.logprobs[position] == call.logprobs[position - span.start]
                    in_spans += 1
        assert in_spans == trace.trainable_tokens > 0
        assert all(bit or value == 0.0 for bit, value in zip(trace.loss_mask, trace.logprobs, strict=True))


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: type(builder).__name__)
@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_a_trajectory_survives_its_binary_form_and_its_account_adds_up(
    builder: Builder, talk: Conversation
) -> None:
    trajectory = builder.build("s1", talk.calls)
    assert decode(encode(trajectory), Trajectory) == trajectory
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics)
    assert statistics.sampled_tokens == statistics.trainable_tokens + statistics.dropped_tokens
    assert sum(statistics.dropped.values()) == statistics.dropped_tokens
    assert sum(statistics.breaks.values()) == len(trajectory.breaks)
    assert statistics.merged_pairs <= statistics.append_only_pairs < max(1, len(talk.calls))


@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_a_trace_that_follows_a_call_says_why_it_does_not_extend_it(talk: Conversation) -> None:
    trajectory = BUILDERS[0].build("s1", talk.calls)
    parents = {call.call_id: call.parent_id for call in talk.calls}
    broken = {entry.call_id for entry in trajectory.breaks}
    for trace in trajectory.traces:
        first = trace.spans[0].call_id
        assert parents[first] is None or first in broken


@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_all_builders_train_on_the_same_tokens(talk: Conversation) -> None:
    merging, single, tree = (builder.build("s1", talk.calls) for builder in BUILDERS)
    assert merging.dropped == single.dropped == tree.dropped
    assert len(merging.traces) == len(tree.traces) <= len(single.traces)
