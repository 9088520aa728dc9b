"""The account of a trajectory."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conversation import Conversation

from polar.builders.drift import DriftOptions
from polar.builders.drops import DropRules
from polar.builders.links import link_calls
from polar.builders.per_request import PerRequest
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.statistics import TokensUnaccounted, trajectory_of
from polar.types import Message, TrajectoryStatistics, logprobs


def merged(talk: Conversation) -> TrajectoryStatistics:
    trajectory = PrefixMerging(DriftOptions()).build("s1", talk.calls)
    return TrajectoryStatistics.model_validate(trajectory.statistics)


def test_everything_is_counted() -> None:
    talk = Conversation()
    talk.call("title?", "fix", kind="auxiliary")
    first = talk.call("Su", "abc", logprobs=logprobs([-0.5, math.nan, -0.5]), tolerant=("reasoning",))
    second = talk.call("T", "cd", after=first, tolerant=("reasoning", "ids"))
    talk.call("SabT", "e", after=second, continues=False, break_reason="thinking_stripped")
    assert merged(talk) == TrajectoryStatistics(
        calls=4,
        traces=2,
        sampled_tokens=9,
        trainable_tokens=5,
        dropped_tokens=4,
        append_only_pairs=2,
        merged_pairs=1,
        merge_rate=0.5,
        breaks={"thinking_stripped": 1},
        dropped={"kind:auxiliary": 3, "missing_logprob": 1},
        tolerant_matches={"reasoning": 2, "ids": 1},
    )


def test_without_pairs_there_is_no_rate() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    assert merged(talk).merge_rate is None
    assert merged(Conversation()) == TrajectoryStatistics()


def test_an_edited_history_is_no_missed_merge() -> None:
    talk = Conversation()
    first = talk.call("Su", "bad")
    edited = Message(role="assistant", content="invalid")
    talk.call("SuinvalidT", "c", after=first, continues=False, echo=edited)
    assert merged(talk).append_only_pairs == 0


def test_a_fork_can_merge_only_one_of_its_pairs() -> None:
    talk = Conversation()
    root = talk.call("Su", "ab")
    talk.call("T", "c", after=root)
    talk.call("U", "d", after=root)
    statistics = merged(talk)
    assert (statistics.append_only_pairs, statistics.merged_pairs) == (2, 1)


def test_of_equal_requests_with_equal_replies_either_may_be_gone_on_from() -> None:
    """The harness asked twice, got the same words, and its echo named the first by the ids of its tool calls."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    statistics = merged(talk)
    assert (statistics.append_only_pairs, statistics.merged_pairs, statistics.merge_rate) == (1, 1, 1.0)


@pytest.mark.parametrize("rule", ["drop", "keep"])
def test_a_step_that_was_asked_for_again_can_be_merged_once(rule: str) -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    talk.call("T", "d", after=first)
    trajectory = PrefixMerging(DriftOptions.model_validate({"superseded": rule})).build("s1", talk.calls)
    assert (trajectory.statistics["append_only_pairs"], trajectory.statistics["merge_rate"]) == (1, 1.0)


def test_two_equal_conversations_side_by_side_are_two_pairs() -> None:
    """The forest took the last reply for both: one step was appended and not merged."""
    talk = Conversation()
    talk.call("Su", "ab")
    last = talk.call("Su", "ab")
    talk.call("T", "c", after=last)
    talk.call("T", "d", after=last)
    trajectory = PrefixMerging(DriftOptions(superseded="keep")).build("s1", talk.calls)
    assert (trajectory.statistics["append_only_pairs"], trajectory.statistics["merge_rate"]) == (2, 0.5)


def test_tokens_past_the_end_of_a_reply_are_counted_and_are_not_sampled_ones() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab", cut_tokens=3)
    talk.call("T", "cd", after=first, cut_tokens=2)
    statistics = merged(talk)
    assert (statistics.cut_tokens, statistics.sampled_tokens, statistics.trainable_tokens) == (5, 4, 4)


@pytest.mark.parametrize(
    "fault", [{"finish_reason": "aborted"}, {"received": False}, {"kind": "auxiliary"}], ids=str
)
def test_a_call_that_gives_nothing_to_train_on_is_no_missed_merge(fault: dict[str, Any]) -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first)
    talk.call("U", "e", after=second, **fault)
    statistics = merged(talk)
    assert (statistics.append_only_pairs, statistics.merged_pairs) == (1, 1)


def test_an_unproven_prompt_is_a_missed_merge() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, prompt_digest=b"of another prompt")
    assert merged(talk).merge_rate == 0.0


def test_context_that_is_not_trained_on_still_merges() -> None:
    talk = Conversation()
    probe = talk.call("Su", "q", kind="auxiliary")
    empty = talk.call("T", "", after=probe)
    talk.call("U", "ab", after=empty)
    assert merged(talk).merge_rate == 1.0


def test_one_trace_for_each_call_merges_nothing() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first)
    statistics = PerRequest(DropRules()).build("s1", talk.calls).statistics
    assert (statistics["append_only_pairs"], statistics["merge_rate"]) == (1, 0.0)


def test_a_builder_that_loses_tokens_is_found_out() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    links = link_calls(talk.calls, DropRules())
    with pytest.raises(TokensUnaccounted, match="2 tokens sampled, but 0 trainable and 0 dropped"):
        trajectory_of("s1", "forgetful", links, traces=(), breaks=())
