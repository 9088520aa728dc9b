"""A session that sampled, and has no token to train on."""

from __future__ import annotations

from stored_groups import a_session, a_trace

from polar.credit.advantages import FinishedSession
from polar.types import Failure, TrajectoryStatistics, logprobs, loss_mask

BAD_EXIT = Failure.model_validate({"where": "harness", "type": "BadExit", "message": "exit code 1", "agent": True})


def a_silent_session(name: str, reward: float) -> FinishedSession:
    """Its only reply never ended, so the agent failed: `SessionResult.in_baseline`, without being trainable."""
    trace = a_trace(name, loss_mask=loss_mask([0] * 4), logprobs=logprobs([0.0] * 4))
    statistics = TrajectoryStatistics(traces=1, sampled_tokens=3)
    return a_session(name, reward, trace, failure=BAD_EXIT, statistics=statistics)
