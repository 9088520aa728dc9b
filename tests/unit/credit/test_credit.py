"""The tables of credit: who gets which advantage, and how much each session weighs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from polar.credit.advantages import CreditedTrace, FinishedSession, advantages, credit, token_weights
from polar.types import (
    Certificate,
    Failure,
    Score,
    SessionResult,
    Span,
    Stage,
    Trace,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    loss_mask,
    token_ids,
)


def a_trace(session_id: str, tokens: int, reward: float | None, call_id: str = "c") -> Trace:
    return Trace(
        session_id=session_id,
        prompt_ids=token_ids([1]),
        response_ids=token_ids([2] * tokens + [3]),
        loss_mask=loss_mask([1] * tokens + [0]),
        logprobs=logprobs([-0.5] * tokens + [0.0]),
        spans=(Span(call_id, 0, tokens),),
        reward=reward,
    )


def session(
    name: str, reward: float | None, traces: int = 1, tokens: int = 2, *, failure: Failure | None = None
) -> FinishedSession:
    statistics = TrajectoryStatistics(traces=traces, trainable_tokens=traces * tokens)
    counts = {"sampled_tokens": traces * tokens, "trainable_tokens": traces * tokens, "dropped_tokens": 0}
    digests = {"calls_digest": "0", "traces_digest": "0"}
    certificate = Certificate.model_validate(
        {"builder": "b", "calls": 1, "traces": traces, "exact": True, **counts, **digests}
    )
    result = SessionResult(
        session_id=name,
        task_id="t",
        index=0,
        attempt=1,
        stage=Stage.FAILED if failure else Stage.COMPLETED,
        score=None if reward is None else Score(reward=reward),
        failure=failure,
        statistics=statistics,
        certificate=certificate,
    )
    made = tuple(a_trace(name, tokens, reward, f"{name}.{number}") for number in range(traces))
    return FinishedSession(result, Trajectory(session_id=name, builder="b", traces=made))


def by_session(credited: Sequence[CreditedTrace]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for item in credited:
        found.setdefault(item.trace.session_id, []).append(round(item.advantages[0], 2))
    return found


@pytest.mark.parametrize(
    ("rewards", "traces", "high", "low"),
    [((1, 0, 0, 0), (10, 1, 1, 1), 1.73, -0.58), ((1, 1, 0, 0), (1, 1, 12, 12), 1.00, -1.00)],
)
def test_the_baseline_is_over_sessions_and_not_over_traces(
    rewards: tuple[float, ...], traces: tuple[int, ...], high: float, low: float
) -> None:
    group = [
        session(f"s{i}", reward, count) for i, (reward, count) in enumerate(zip(rewards, traces, strict=True))
    ]
    expected = {f"s{i}": [high if rewards[i] else low] * traces[i] for i in range(len(rewards))}
    assert by_session(credit(group)) == expected


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", [1.7321, -0.5774, -0.5774, -0.5774]),
        ("rloo", [1.0, -0.3333, -0.3333, -0.3333]),
        ("mean", [0.75, -0.25, -0.25, -0.25]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
    ],
)
def test_estimators(estimator: str, expected: list[float]) -> None:
    found = advantages([1, 0, 0, 0], estimator)  # pyright: ignore[reportArgumentType]
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rewards", [[1.0], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3], []])
def test_a_group_without_contrast_teaches_nothing(rewards: list[float]) -> None:
    assert advantages(rewards) == [0.0] * len(rewards)


def test_infrastructure_is_left_out_and_an_agents_failure_counts_as_zero() -> None:
    broken = Failure(where="engine", type="Gone", message="gone")
    own = Failure.model_validate({"where": "harness", "type": "TimedOut", "message": "late", "agent": True})
    group = [session("good", 1.0), session("late", 0.0, failure=own), session("gone", 0.0, failure=broken)]
    assert by_session(credit(group)) == {"good": [1.0], "late": [-1.0]}


def test_equal_sessions_of_different_lengths_have_no_contrast() -> None:
    group = [session("short", 0.1, tokens=3), session("long", 0.1, tokens=7)]
    assert by_session(credit(group)) == {"short": [0.0], "long": [0.0]}


def test_traces_that_were_judged_one_by_one_keep_their_own_rewards() -> None:
    """Session means are 0.5 and 0; the traces of the first are worth 1 and 0."""
    mixed, zero = session("mixed", 0.5, traces=2), session("zero", 0.0)
    first, second = mixed.trajectory.traces
    traces = (a_trace("mixed", 2, 1.0), a_trace("mixed", 2, 0.0))
    mixed = FinishedSession(mixed.result, Trajectory("mixed", "b", traces=traces))
    assert first.reward == second.reward == 0.5
    assert by_session(credit([mixed, zero], "mean")) == {"mixed": [0.75, -0.25], "zero": [-0.25]}


def test_a_reward_of_a_call_reaches_the_tokens_of_that_call_alone() -> None:
    trace = Trace(
        session_id="s",
        prompt_ids=token_ids([1]),
        response_ids=token_ids([2, 3, 4, 5, 6]),
        loss_mask=loss_mask([1, 1, 0, 1, 1]),
        logprobs=logprobs([-1, -1, 0, -1, -1]),
        spans=(Span("first", 0, 2), Span("second", 3, 2)),
        reward=0.0,
    )
    stepped = FinishedSession(session("s", 0.0).result, Trajectory("s", "b", traces=(trace,)))
    credited = credit([stepped, session("other", 0.0)], "mean", {"second": 1.0})
    assert credited[0].advantages == array("d", [-0.25, -0.25, 0.0, 0.75, 0.75])
    assert by_session(credited)["other"] == [-0.25]


def batch_of(*sessions: FinishedSession) -> list[CreditedTrace]:
    return [CreditedTrace(t, array("d", [0.0])) for s in sessions for t in s.trajectory.traces]


@pytest.mark.parametrize("mean", ["session", "token"])
def test_splitting_a_session_does_not_change_its_weight(mean: str) -> None:
    batch = batch_of(session("split", 1.0, traces=10, tokens=100), session("whole", 0.0, traces=1, tokens=1000))
    weights = token_weights(batch, mean)  # pyright: ignore[reportArgumentType]
    total = {"split": 0.0, "whole": 0.0}
    for item, weight in zip(batch, weights, strict=True):
        total[item.trace.session_id] += weight * item.trace.trainable_tokens
    assert total == pytest.approx({"split": 0.5, "whole": 0.5})


def test_sessions_of_different_lengths_weigh_the_same_by_session_and_by_length_otherwise() -> None:
    batch = batch_of(session("short", 1.0, tokens=10), session("long", 0.0, tokens=30))
    assert token_weights(batch, "session") == pytest.approx([1 / 20, 1 / 60])
    assert token_weights(batch, "token") == pytest.approx([1 / 40, 1 / 40])
    assert token_weights(batch, "constant", longest=100) == pytest.approx([1 / 200, 1 / 200])
    assert token_weights([], "session") == []
