"""Finished sessions, made of nothing but what credit looks at."""

from __future__ import annotations

from polar.credit.advantages import FinishedSession
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
        group_id="t",
    )


def session(
    name: str,
    reward: float | None,
    traces: int = 1,
    tokens: int = 2,
    *,
    failure: Failure | None = None,
    aborted: int = 0,
) -> FinishedSession:
    """Each trace is one call, `<name>.<number>`. `aborted`: sampled tokens that no trace has."""
    statistics = TrajectoryStatistics(
        traces=traces,
        sampled_tokens=traces * tokens + aborted,
        trainable_tokens=traces * tokens,
        dropped={"aborted": aborted} if aborted else {},
    )
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
