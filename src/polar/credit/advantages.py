"""Credit: from the rewards of a group of sessions to an advantage for each trainable token.

The baseline is taken over sessions, never over traces: a session that was split into ten traces is still one
sample of the policy, and must not weigh more than its neighbour. `SessionResult.in_baseline` says which sessions
count: infrastructure's failures are left out, an agent's own failure is in with its reward of 0.0, also if none of
its tokens can be trained on. A group without contrast, or of one session, teaches nothing: its advantages are 0.

Auxiliary calls, such as titles, get no credit: builders drop their tokens unless told otherwise
(`trainable_kinds`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple, get_args

import msgspec

from polar.types import SessionResult, Trace, Trajectory

Estimator = Literal["grpo", "rloo", "dr_grpo", "mean"]
"""How a group's rewards become advantages:

- `grpo`: distance from the mean, in standard deviations of the group;
- `rloo`: distance from the mean of the other sessions;
- `mean`: distance from the mean;
- `dr_grpo`: the same, for a loss that weighs tokens by `constant` (see `LossMean`).
"""
LossMean = Literal["session", "token", "constant"]
"""What a loss averages over:

- `session`: all sessions weigh the same, however many traces or tokens they have;
- `token`: all trainable tokens of the batch weigh the same;
- `constant`: each token weighs 1 / (sessions × `longest`), so that length earns nothing.
"""


class FinishedSession(NamedTuple):
    result: SessionResult
    trajectory: Trajectory | None
    """None: the session has no traces, because it ended before its traces were built."""

    @property
    def traces(self) -> tuple[Trace, ...]:
        return () if self.trajectory is None else self.trajectory.traces


class CreditedTrace(msgspec.Struct, frozen=True):
    trace: Trace
    advantages: array[float]
    """One per response id; 0.0 where the mask is 0."""


class Baseline(NamedTuple):
    """Where zero is for one session, and how long a unit."""

    centre: float
    scale: float

    def advantage(self, reward: float) -> float:
        return (reward - self.centre) * self.scale


def baselines(sessions: Sequence[Sequence[float]], estimator: Estimator = "grpo") -> list[Baseline]:
    """One for each session of a group, from the rewards of its tokens; one value stands for equal ones."""
    _check_known("estimator", estimator, get_args(Estimator))
    means = [_mean(rewards) for rewards in sessions]
    if len(sessions) < 2 or not _differ(sessions):
        return [Baseline(mean, 0.0) for mean in means]
    size, total = len(means), math.fsum(means)
    mean = total / size
    if estimator == "rloo":
        return [Baseline((total - own) / (size - 1), 1.0) for own in means]
    if estimator == "grpo":
        return [Baseline(mean, 1 / _deviation(sessions, mean))] * size
    return [Baseline(mean, 1.0)] * size


def advantages(rewards: Sequence[float], estimator: Estimator = "grpo") -> list[float]:
    """One for each session of a group."""
    of_sessions = baselines([[reward] for reward in rewards], estimator)
    return [baseline.advantage(reward) for baseline, reward in zip(of_sessions, rewards, strict=True)]


def has_contrast(sessions: Sequence[Sequence[float]]) -> bool:
    """Whether a group teaches anything. Takes what `baselines` takes."""
    return any(baseline.scale for baseline in baselines(sessions))


def credit(group: Iterable[FinishedSession], estimator: Estimator = "grpo") -> list[CreditedTrace]:
    """The traces of one group that can be trained on, each token with its advantage.

    All tokens of a session get the session's advantage, unless the evaluator judged its traces or its calls one by
    one (`Score.trace_rewards`, `Score.call_rewards`). Such a process reward replaces the session's for the tokens
    it covers. The baseline is then over each session's mean reward per trainable token, which is the plain rule
    where all rewards of a session are equal.
    """
    sessions = [session for session in group if session.result.in_baseline]
    of_sessions = baselines([token_rewards(session) for session in sessions], estimator)
    return [
        CreditedTrace(trace, _advantages(trace, rewards, baseline))
        for session, baseline in zip(sessions, of_sessions, strict=True)
        for trace, rewards in _rewarded(session)
    ]


def compared_rewards(group: Iterable[FinishedSession]) -> list[list[float]]:
    """What `credit` compares: the rewards of the tokens of each session that counts."""
    return [token_rewards(session) for session in group if session.result.in_baseline]


def token_rewards(session: FinishedSession) -> list[float]:
    """Of its trainable tokens. If they are all equal, or if there is no such token, a single value."""
    found = [reward for trace, rewards in _rewarded(session) for reward in compress(rewards, trace.loss_mask)]
    if not found:
        return [session.result.reward or 0.0]
    return found[:1] if min(found) == max(found) else found


def token_weights(
    batch: Sequence[CreditedTrace], mean: LossMean = "session", longest: int | None = None
) -> list[float]:
    """The weight of each trainable token, by trace: a loss is the sum of weight × token loss over the batch.
    A trace without such a token weighs nothing.

    The weights of a session add up to the same whether its tokens stand in one trace or in many. `longest`:
    trainable tokens of the longest session that the limits allow, for `constant`; the longest of the batch if not
    given."""
    _check_known("mean", mean, get_args(LossMean))
    tokens_of = dict[str, int]()
    for item in batch:
        if item.trace.trainable_tokens:
            session_id = item.trace.session_id
            tokens_of[session_id] = tokens_of.get(session_id, 0) + item.trace.trainable_tokens
    if not tokens_of:
        return [0.0] * len(batch)
    weights = {name: 1 / _share(tokens, tokens_of, mean, longest) for name, tokens in tokens_of.items()}
    return [weights[item.trace.session_id] if item.trace.trainable_tokens else 0.0 for item in batch]


def _share(tokens: int, tokens_of: Mapping[str, int], mean: LossMean, longest: int | None) -> int:
    """What the loss of each token of a session with so many `tokens` is divided by."""
    if mean == "token":
        return sum(tokens_of.values())
    if mean == "constant":
        return len(tokens_of) * (longest or max(tokens_of.values()))
    return len(tokens_of) * tokens


def _check_known(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")


class _RewardedTrace(NamedTuple):
    trace: Trace
    rewards: array[float]
    """One per response id."""


def _rewarded(session: FinishedSession) -> list[_RewardedTrace]:
    """The traces with something to train on."""
    score = session.result.score
    of_calls = (score and score.call_rewards) or {}
    return [
        _RewardedTrace(trace, _token_rewards(trace, trace.reward, of_calls))
        for trace in session.traces
        if trace.trainable_tokens and trace.reward is not None
    ]


def _token_rewards(trace: Trace, of_trace: float, of_calls: Mapping[str, float]) -> array[float]:
    """The reward of each response id: its call's, else its trace's."""
    rewards = array("d", [of_trace]) * len(trace.response_ids)
    for span in trace.spans:
        if span.call_id in of_calls:
            rewards[span.start : span.start + span.length] = array("d", [of_calls[span.call_id]]) * span.length
    return rewards


def _mean(values: Sequence[float]) -> float:
    """A single value stays as it is, so that equal sessions of different lengths have exactly equal means."""
    return values[0] if len(values) == 1 else math.fsum(values) / len(values)


def _differ(sessions: Sequence[Sequence[float]]) -> bool:
    """Not `==`: by a deviation that is only rounding, GRPO would divide."""
    lowest, highest = min(map(min, sessions)), max(map(max, sessions))
    return not math.isclose(highest, lowest, rel_tol=1e-9, abs_tol=1e-12)


def _deviation(sessions: Sequence[Sequence[float]], mean: float) -> float:
    """Of the tokens' rewards from the group's mean; each session counts once, however many tokens it has. So no
    advantage grows without bound where sessions are equal on average and their steps are not."""
    squares = [_mean([(reward - mean) ** 2 for reward in rewards]) for rewards in sessions]
    return math.sqrt(math.fsum(squares) / len(squares))


def _advantages(trace: Trace, rewards: array[float], baseline: Baseline) -> array[float]:
    earned = (
        baseline.advantage(reward) if trainable else 0.0
        for reward, trainable in zip(rewards, trace.loss_mask, strict=True)
    )
    return array("d", earned)
