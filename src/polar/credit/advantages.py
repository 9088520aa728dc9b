"""Credit: from the rewards of a group of sessions to an advantage for each trainable token.

The baseline is taken over sessions, never over traces: a session that was split into ten traces is still one
sample of the policy, and must not weigh more than its neighbour. Only trainable sessions count
(`SessionResult.trainable`): infrastructure's failures are left out, an agent's own failure is in with its reward
of 0.0. A group without contrast, or of one session, teaches nothing: its advantages are 0.

Auxiliary calls, such as titles, get no credit: builders drop their tokens unless told otherwise
(`trainable_kinds`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple

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


def baselines(rewards: Sequence[float], estimator: Estimator = "grpo") -> list[Baseline]:
    """One for each session of a group, from the rewards of all."""
    size = len(rewards)
    if size < 2 or math.isclose(max(rewards), min(rewards), rel_tol=1e-9, abs_tol=1e-12):
        # Not `==`: by a deviation that is only rounding, GRPO would divide.
        return [Baseline(reward, 0.0) for reward in rewards]
    total = math.fsum(rewards)
    mean = total / size
    if estimator == "rloo":
        return [Baseline((total - reward) / (size - 1), 1.0) for reward in rewards]
    if estimator == "grpo":
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / size)
        return [Baseline(mean, 1 / deviation)] * size
    return [Baseline(mean, 1.0)] * size


def advantages(rewards: Sequence[float], estimator: Estimator = "grpo") -> list[float]:
    """One for each session of a group."""
    of_sessions = baselines(rewards, estimator)
    return [baseline.advantage(reward) for baseline, reward in zip(of_sessions, rewards, strict=True)]


def credit(group: Iterable[FinishedSession], estimator: Estimator = "grpo") -> list[CreditedTrace]:
    """The traces of one group that can be trained on, each token with its advantage.

    All tokens of a session get the session's advantage, unless the evaluator judged its traces or its calls one by
    one (`Score.trace_rewards`, `Score.call_rewards`). Such a process reward replaces the session's for the tokens
    it covers. The baseline is then over each session's mean reward per trainable token, which is the plain rule
    where all rewards of a session are equal.
    """
    sessions = [session for session in group if session.result.trainable]
    rewarded = [_rewarded(session) for session in sessions]
    means = [_mean_reward(session.result, traces) for session, traces in zip(sessions, rewarded, strict=True)]
    return [
        CreditedTrace(trace, _advantages(trace, rewards, baseline))
        for traces, baseline in zip(rewarded, baselines(means, estimator), strict=True)
        for trace, rewards in traces
    ]


def session_rewards(group: Iterable[FinishedSession]) -> list[float]:
    """What `credit` compares: one value for each session that may be trained on."""
    return [_mean_reward(session.result, _rewarded(session)) for session in group if session.result.trainable]


def token_weights(
    batch: Sequence[CreditedTrace], mean: LossMean = "session", longest: int | None = None
) -> list[float]:
    """The weight of each trainable token, by trace: a loss is the sum of weight × token loss over the batch.

    The weights of a session add up to the same whether its tokens stand in one trace or in many. `longest`:
    trainable tokens of the longest session that the limits allow, for `constant`; the longest of the batch if not
    given."""
    tokens_of = dict[str, int]()
    for item in batch:
        session_id = item.trace.session_id
        tokens_of[session_id] = tokens_of.get(session_id, 0) + item.trace.trainable_tokens
    if not tokens_of:
        return []
    if mean == "token":
        return [1 / sum(tokens_of.values())] * len(batch)
    if mean == "constant":
        return [1 / (len(tokens_of) * (longest or max(tokens_of.values())))] * len(batch)
    return [1 / (len(tokens_of) * tokens_of[item.trace.session_id]) for item in batch]


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


def _mean_reward(result: SessionResult, traces: Sequence[_RewardedTrace]) -> float:
    """Of a session, over its trainable tokens; without any, its own reward. A single value is returned as it is,
    so that equal sessions of different lengths have exactly equal means."""
    trainable = [reward for trace, rewards in traces for reward in compress(rewards, trace.loss_mask)]
    if not trainable:
        return result.reward or 0.0
    return trainable[0] if min(trainable) == max(trainable) else math.fsum(trainable) / len(trainable)


def _advantages(trace: Trace, rewards: array[float], baseline: Baseline) -> array[float]:
    earned = (
        baseline.advantage(reward) if trainable else 0.0
        for reward, trainable in zip(rewards, trace.loss_mask, strict=True)
    )
    return array("d", earned)
