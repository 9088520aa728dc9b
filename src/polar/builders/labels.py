"""Labels of a finished session's traces: task, group, sample, attempt, failure and reward.

POSTRUN, before traces are written or reported, and again by `polar audit`. Only here does a reward reach a trace.
A session that failed because of infrastructure has none, whatever an evaluator returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import msgspec

from polar.types import Call, Failure, Lease, Score, Trajectory


class WrongRewards(ValueError):
    """An evaluator returned rewards by trace, but not one for each, or a reward for an unknown call."""


def counted(score: Score | None, failure: Failure | None) -> Score | None:
    """The score that a result reports: without rewards if infrastructure failed, because they would not judge the
    policy."""
    if score is None:
        return None
    return score.finite().without_reward() if failure and failure.infrastructure else score.finite()


def check_rewards(score: Score, trajectory: Trajectory) -> None:
    rewards = score.trace_rewards
    if rewards is not None and len(rewards) != len(trajectory.traces):
        raise WrongRewards(f"{len(rewards)} rewards for {len(trajectory.traces)} traces")


def check_call_rewards(score: Score, calls: Iterable[Call]) -> None:
    known = {call.call_id for call in calls}
    if unknown := sorted((score.call_rewards or {}).keys() - known):
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        named = f"{unknown[0][:200]!r}{more}"
        raise WrongRewards(f"call_rewards has {named}, which is no call of this session; see evidence.calls")


def labelled(trajectory: Trajectory, lease: Lease, score: Score | None, failure: Failure | None) -> Trajectory:
    """Every trace with its task, group, sample, attempt, failure and reward."""
    session = lease.session
    traces = tuple(
        msgspec.structs.replace(
            trace,
            task_id=session.task_id,
            group_id=lease.task.group or session.task_id,
            sample=session.index,
            attempt=session.attempt,
            failure=f"{failure.where}: {failure.type}" if failure else "",
            reward=reward,
        )
        for trace, reward in zip(trajectory.traces, _rewards(trajectory, counted(score, failure)), strict=True)
    )
    return msgspec.structs.replace(trajectory, traces=traces)


def _rewards(trajectory: Trajectory, score: Score | None) -> Sequence[float | None]:
    """The session's reward for every trace, unless the evaluator gave rewards by trace. A trace without trainable
    tokens gets none."""
    if score is None:
        return [None] * len(trajectory.traces)
    check_rewards(score, trajectory)
    given = score.trace_rewards if score.trace_rewards is not None else repeat(score.reward)
    return [
        reward if trace.trainable_tokens else None for trace, reward in zip(trajectory.traces, given, strict=False)
    ]
