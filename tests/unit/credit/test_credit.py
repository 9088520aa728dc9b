"""The tables of credit: who gets which advantage, and how much each session weighs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from finished import a_trace, session

from polar.credit.advantages import CreditedTrace, FinishedSession, advantages, credit, token_weights
from polar.credit.bounds import without_stale
from polar.types import Failure, Score, Span, Trace, Trajectory, logprobs, loss_mask, token_ids

PLAIN = session("plain", 1.0)


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
    assert [trace.reward for trace in mixed.traces] == [0.5, 0.5]
    traces = (a_trace("mixed", 2, 1.0), a_trace("mixed", 2, 0.0))
    mixed = FinishedSession(mixed.result, Trajectory("mixed", "b", traces=traces))
    assert by_session(credit([mixed, zero], "mean")) == {"mixed": [0.75, -0.25], "zero": [-0.25]}


def stepped(name: str, reward: float, call_rewards: dict[str, float]) -> FinishedSession:
    """A session of one trace: two calls of two tokens each, with a token of context between them."""
    trace = Trace(
        session_id=name,
        prompt_ids=token_ids([1]),
        response_ids=token_ids([2, 3, 4, 5, 6]),
        loss_mask=loss_mask([1, 1, 0, 1, 1]),
        logprobs=logprobs([-1, -1, 0, -1, -1]),
        spans=(Span("first", 0, 2), Span("second", 3, 2)),
        reward=reward,
    )
    score = Score(reward=reward, call_rewards=call_rewards or None)
    return judged(FinishedSession(session(name, reward).result, Trajectory(name, "b", traces=(trace,))), score)


def judged(finished: FinishedSession, score: Score) -> FinishedSession:
    return finished._replace(result=finished.result.model_copy(update={"score": score}))


@pytest.mark.parametrize(
    ("estimator", "reward", "call_rewards", "expected"),
    [
        # Over session means of 0.5 and 0.0.
        ("mean", 0.0, {"second": 1.0}, [-0.25, -0.25, 0.0, 0.75, 0.75]),
        ("rloo", 0.0, {"second": 1.0}, [0.0, 0.0, 0.0, 1.0, 1.0]),
        # All tokens' rewards deviate by 0.433 from 0.25, each session counting once.
        ("grpo", 0.0, {"second": 1.0}, [-0.57735, -0.57735, 0.0, 1.73205, 1.73205]),
        # A process reward replaces the session's on its own tokens; the others keep the session's.
        ("mean", 1.0, {"first": 0.0}, [-0.25, -0.25, 0.0, 0.75, 0.75]),
        # Both calls judged: the session's own reward is on no token.
        ("mean", 9.0, {"first": 0.0, "second": 1.0}, [-0.25, -0.25, 0.0, 0.75, 0.75]),
        # The same value for each call as for the session is the plain rule.
        ("mean", 1.0, {"first": 1.0, "second": 1.0}, [0.5, 0.5, 0.0, 0.5, 0.5]),
        # Means of 0.0 and 0.0: the sessions are equal, their steps are not.
        ("grpo", 0.0, {"first": 1.0, "second": -1.0}, [1.41421, 1.41421, 0.0, -1.41421, -1.41421]),
        ("mean", 0.0, {"first": 1.0, "second": -1.0}, [1.0, 1.0, 0.0, -1.0, -1.0]),
        ("grpo", 0.0, {"first": 0.0, "second": 0.0}, [0.0] * 5),
    ],
)
def test_rewards_of_calls(
    estimator: Any, reward: float, call_rewards: dict[str, float], expected: list[float]
) -> None:
    credited = credit([stepped("s", reward, call_rewards), session("other", 0.0)], estimator)
    assert credited[0].advantages.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("other", [0.5, 0.501, 0.51])
def test_close_sessions_with_different_steps_get_no_huge_advantages(other: float) -> None:
    """Means of 0.5 and nearly 0.5: the deviation of the means alone would make a step worth thousands."""
    credited = credit([stepped("s", 0.0, {"second": 1.0}), session("other", other)])
    assert credited[0].advantages.tolist() == pytest.approx([-1.41, -1.41, 0.0, 1.41, 1.41], abs=0.02)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (advantages, [1, 0], "unknown estimator 'sesion'; known: grpo, rloo"),
        (token_weights, credit([PLAIN]), "unknown mean 'sesion'; known: session, token"),
    ],
)
def test_a_misspelled_name_is_refused_with_the_known_ones(function: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(given, "sesion")


def test_a_judged_call_in_several_traces_still_makes_one_sample_of_its_session() -> None:
    """Ten traces of 2 tokens, one call judged 1: the mean is 0.1, against 0 of a session with one trace."""
    many = judged(session("many", 0.0, traces=10), Score(reward=0.0, call_rewards={"many.3": 1.0}))
    found = by_session(credit([many, session("one", 0.0)], "mean"))
    assert found == {"many": [-0.05] * 3 + [0.95] + [-0.05] * 6, "one": [-0.05]}


def test_process_rewards_do_not_change_the_weight_of_a_session() -> None:
    plain, processed = session("s", 0.0, traces=3), session("s", 0.0, traces=3)
    processed = judged(processed, Score(reward=0.0, call_rewards={"s.1": 1.0}))
    other = session("other", 1.0)
    assert token_weights(credit([plain, other])) == token_weights(credit([processed, other]))


def test_a_session_without_traces_is_in_the_baseline_if_it_is_trainable() -> None:
    """Its reward is known; there is only nothing of it to train on."""
    bare = FinishedSession(session("bare", 1.0).result, None)
    assert bare.traces == ()
    assert by_session(credit([bare, session("zero", 0.0)])) == {"zero": [-1.0]}
    gone = session("gone", None)._replace(trajectory=None)
    assert by_session(credit([gone, session("zero", 0.0)])) == {"zero": [0.0]}


def test_a_policy_that_never_ends_its_reply_lowers_the_baseline() -> None:
    """The reply was aborted when the time was up: none of its tokens can be trained on, and its reward is 0.0."""
    own = Failure.model_validate({"where": "harness", "type": "TimedOut", "message": "late", "agent": True})
    endless = session("endless", 0.0, traces=0, failure=own, aborted=500)
    assert endless.result.untrainable_reason == "no_trainable_tokens"
    assert by_session(credit([endless, session("solved", 1.0)])) == {"solved": [1.0]}
    nothing = session("nothing", 0.0, traces=0, failure=own)  # it sampled nothing: that is not the policy's doing
    assert by_session(credit([nothing, session("solved", 1.0)])) == {"solved": [0.0]}


def test_a_session_that_infrastructure_failed_is_out_with_its_process_rewards() -> None:
    broken = Failure(where="engine", type="Gone", message="gone")
    failed = judged(session("gone", 0.0, failure=broken), Score(reward=0.0, call_rewards={"gone.0": 5.0}))
    assert by_session(credit([failed, session("a", 1.0), session("b", 0.0)])) == {"a": [1.0], "b": [-1.0]}


def batch_of(*sessions: FinishedSession) -> list[CreditedTrace]:
    return [CreditedTrace(t, array("d", [0.0])) for s in sessions for t in s.traces]


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


@pytest.mark.parametrize("mean", ["session", "token", "constant"])
def test_a_trace_whose_tokens_are_all_masked_weighs_nothing(mean: Any) -> None:
    masked = CreditedTrace(without_stale(a_trace("old", 2, 0.0), {}, 0), array("d", [0.0] * 3))
    assert token_weights([masked], mean) == [0.0]
    assert token_weights([masked, *batch_of(PLAIN)], mean)[0] == 0.0
