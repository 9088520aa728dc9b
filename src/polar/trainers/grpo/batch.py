"""From finished groups to what the learner takes: credited traces within bounds; and figures of the sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polar.credit.advantages import CreditedTrace
from polar.credit.bounds import within_bounds
from polar.credit.group import Group
from polar.trainers.grpo.config import TrainConfig


def credited_batch(groups: Sequence[Group], config: TrainConfig, version: int) -> list[CreditedTrace]:
    """Every trace that can be trained on at this version of the weights. Groups without contrast teach nothing and
    are left out; in the others a trace without an advantage still counts in a mean over tokens."""
    bounds: dict[str, Any] = {"max_tokens": config.compute.max_tokens, "max_age": config.rollout.max_age}
    teaching = [group for group in groups if group.has_contrast]
    credited = (item for group in teaching for item in group.credited(config.loss.estimator))
    return [kept for item in credited if (kept := within_bounds(item, **bounds, version=str(version))) is not None]


def batch_figures(groups: Sequence[Group], version: int) -> dict[str, float]:
    """About the sessions of a step, for its record."""
    sessions = [session for group in groups for session in group.sessions]
    rewards = [reward for group in groups for reward in group.rewards]
    calls = [session.result.statistics.calls for session in sessions]
    ages = [
        version - int(name)
        for session in sessions
        if session.trajectory is not None
        for trace in session.trajectory.traces
        for name in trace.policy_versions
        if name.isdecimal()
    ]
    return {
        "reward": _mean(rewards),
        "solved": _mean([float(reward >= 1.0) for reward in rewards]),
        "no_contrast": _mean([float(not group.has_contrast) for group in groups]),
        "sessions": float(len(sessions)),
        "left_out": float(len(sessions) - len(rewards)),
        "calls": _mean([float(count) for count in calls]),
        "sampled_tokens": float(sum(session.result.statistics.sampled_tokens for session in sessions)),
        "age": _mean([float(age) for age in ages]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
