"""A reply that the harness received, left aside and asked for again is not trained beside the one it used."""

from __future__ import annotations

import pytest
from conversation import Conversation, drops, shapes
from hypothesis import given, settings
from test_exactly_once import BUILDERS, conversations

from polar.builders.base import Builder
from polar.builders.drift import DriftOptions
from polar.builders.drops import DropRules
from polar.builders.per_request import PerRequest
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree, TreeOptions
from polar.types import Call

EVERY_BUILDER = pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: type(builder).__name__)
KEEPING: list[Builder] = [
    PrefixMerging(DriftOptions(superseded="keep")),
    PerRequest(DropRules(superseded="keep")),
    Tree(TreeOptions(superseded="keep")),
]


def asked_again() -> Conversation:
    """The second turn's first reply got lost in the harness, which sent the request once more and went on."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "xyz", after=first)
    again = talk.call("T", "cd", after=first)
    talk.call("U", "e", after=again)
    return talk


@EVERY_BUILDER
def test_an_abandoned_reply_is_dropped(builder: Builder) -> None:
    trajectory = builder.build("s1", asked_again().calls)
    assert drops(trajectory) == [("c2", 0, 3, "superseded")]
    assert {span.call_id for trace in trajectory.traces for span in trace.spans} == {"c1", "c3", "c4"}


def test_the_conversation_goes_on_in_one_trace_without_it() -> None:
    trajectory = PrefixMerging(DriftOptions()).build("s1", asked_again().calls)
    assert shapes(trajectory) == [("Su", "abTcdUe", "^^.^^.^")]
    assert trajectory.breaks == ()
    assert trajectory.statistics["merge_rate"] == 1.0


@pytest.mark.parametrize("builder", KEEPING, ids=lambda builder: type(builder).__name__)
def test_samples_on_purpose_are_kept_if_the_task_says_so(builder: Builder) -> None:
    trajectory = builder.build("s1", asked_again().calls)
    assert trajectory.dropped == ()
    assert trajectory.statistics["trainable_tokens"] == 8


def test_the_first_call_of_a_session_can_be_asked_for_again() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    talk.call("Su", "cd")
    talk.call("Su", "ef")
    trajectory = PrefixMerging(DriftOptions()).build("s1", talk.calls)
    assert drops(trajectory) == [("c1", 0, 2, "superseded"), ("c2", 0, 2, "superseded")]
    assert shapes(trajectory) == [("Su", "ef", "^^")]


def test_a_reply_that_was_used_stays_however_often_its_request_comes_again() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    talk.call("Su", "de")
    assert PrefixMerging(DriftOptions()).build("s1", talk.calls).dropped == ()


def test_a_reply_used_in_other_tokens_was_used() -> None:
    """The next prompt was rendered anew, which breaks the trace; the harness still continued from this call."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("SuabT", "c", after=first, continues=False, break_reason="bridge_refused")
    talk.call("Su", "de")
    assert PrefixMerging(DriftOptions()).build("s1", talk.calls).dropped == ()


def test_parallel_work_with_keys_of_its_own_is_no_repetition() -> None:
    """Two sub-agents with the same words: their attribution differs, and so do their keys."""
    talk = Conversation()
    talk.call("Su", "ab", request_key=b"one")
    talk.call("Su", "cd", request_key=b"two")
    assert PrefixMerging(DriftOptions()).build("s1", talk.calls).dropped == ()


def test_calls_of_an_older_journal_have_no_key_and_no_equal() -> None:
    talk = Conversation()
    talk.call("Su", "ab", request_key=b"")
    talk.call("Su", "cd", request_key=b"")
    assert PrefixMerging(DriftOptions()).build("s1", talk.calls).dropped == ()


def test_a_reason_of_the_calls_own_comes_first() -> None:
    talk = Conversation()
    talk.call("Su", "ab", finish_reason="aborted", received=False)
    talk.call("Su", "cd")
    assert drops(PrefixMerging(DriftOptions()).build("s1", talk.calls)) == [("c1", 0, 2, "aborted")]


def is_superseded(call: Call, calls: list[Call]) -> bool:
    """The rule as documented, applied to one call at a time."""
    later = calls[calls.index(call) + 1 :]
    asked_again = any(other.request_key == call.request_key for other in later)
    return asked_again and not any(other.parent_id == call.call_id for other in calls)


@EVERY_BUILDER
@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_nothing_is_trained_on_that_was_asked_for_again_and_left(builder: Builder, talk: Conversation) -> None:
    trajectory = builder.build("s1", talk.calls)
    trained = {
        span.call_id
        for trace in trajectory.traces
        for span in trace.spans
        if any(trace.loss_mask[span.start : span.start + span.length])
    }
    left = {call.call_id for call in talk.calls if is_superseded(call, talk.calls)}
    assert not trained & left
    assert {drop.call_id for drop in trajectory.dropped if drop.reason == "superseded"} <= left
