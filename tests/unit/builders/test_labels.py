"""The labels of a finished session's traces."""

from __future__ import annotations

import pytest
from conversation import Conversation

from polar.builders.drift import DriftOptions
from polar.builders.labels import WrongRewards, check_call_rewards, counted, labelled
from polar.builders.prefix_merging import PrefixMerging
from polar.types import Failure, Lease, Score, Session, TaskRequest, Trajectory

INFRASTRUCTURE = Failure(where="engine", type="EngineError", message="gone")
AGENT = Failure(where="run", type="TimedOut", message="too long", agent=True)


def two_traces() -> Trajectory:
    talk = Conversation()
    talk.call("Su", "ab")
    talk.call("other", "cd")
    return PrefixMerging(DriftOptions()).build("s1", talk.calls)


def a_lease(group_id: str | None = None) -> Lease:
    session = Session(session_id="t-3", task_id="t", index=3, attempt=2)
    return Lease(session=session, task=TaskRequest(task_id="t", instruction="x", num_samples=4, group_id=group_id))


@pytest.mark.parametrize(("group_id", "expected"), [(None, "t"), ("batch", "batch")])
def test_every_trace_knows_task_group_sample_attempt_and_failure(group_id: str | None, expected: str) -> None:
    for trace in labelled(two_traces(), a_lease(group_id), Score(reward=0.0), AGENT).traces:
        assert (trace.task_id, trace.group_id, trace.sample, trace.attempt) == ("t", expected, 3, 2)
        assert (trace.failure, trace.reward) == ("run: TimedOut", 0.0)


def test_infrastructure_leaves_no_reward_on_any_trace() -> None:
    score = Score(reward=1.0, trace_rewards=(1.0, 0.5), metrics={"passed": 2.0})
    traces = labelled(two_traces(), a_lease(), score, INFRASTRUCTURE).traces
    assert [(trace.reward, trace.failure) for trace in traces] == [(None, "engine: EngineError")] * 2
    assert counted(Score(reward=1.0, call_rewards={"c1": 1.0}), INFRASTRUCTURE) == Score(reward=None)
    assert counted(score, INFRASTRUCTURE) == Score(reward=None, metrics={"passed": 2.0})
    assert counted(score, AGENT) == counted(score, None) == score
    assert counted(None, INFRASTRUCTURE) is None


def test_labels_can_be_given_again() -> None:
    """A session that fails after its traces were labelled loses its reward."""
    first = labelled(two_traces(), a_lease(), Score(reward=1.0), None)
    assert [trace.reward for trace in first.traces] == [1.0, 1.0]
    assert [trace.reward for trace in labelled(first, a_lease(), Score(reward=1.0), INFRASTRUCTURE).traces] == [
        None
    ] * 2


def test_rewards_trace_by_trace() -> None:
    traces = labelled(two_traces(), a_lease(), Score(reward=1.0, trace_rewards=(0.25, 0.5)), None).traces
    assert [trace.reward for trace in traces] == [0.25, 0.5]
    with pytest.raises(WrongRewards, match="1 rewards for 2 traces"):
        labelled(two_traces(), a_lease(), Score(reward=1.0, trace_rewards=(0.25,)), None)


def test_rewards_call_by_call_are_of_calls_that_are_there() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    check_call_rewards(Score(reward=1.0), talk.calls)
    check_call_rewards(Score(reward=1.0, call_rewards={"c1": 0.5}), talk.calls)
    with pytest.raises(WrongRewards, match="has 'c7' and 1 more, which is no call of this session"):
        check_call_rewards(Score(reward=1.0, call_rewards={"c1": 0.5, "c8": 1.0, "c7": 1.0}), talk.calls)
