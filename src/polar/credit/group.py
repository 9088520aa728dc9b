"""A group: the finished sessions whose rewards are compared, and the rows a trainer makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from polar.credit.advantages import (
    CreditedTrace,
    Estimator,
    FinishedSession,
    baselines,
    credit,
    session_rewards,
)

if TYPE_CHECKING:
    import numpy


class TrainingRow(TypedDict):
    """One trace as arrays. The last four have one value per completion id."""

    session_id: str
    group: str
    reward: float
    """Of the session."""
    prompt_ids: numpy.ndarray[Any, Any]
    """int32"""
    completion_ids: numpy.ndarray[Any, Any]
    """int32"""
    mask: numpy.ndarray[Any, Any]
    """int8. 1: sampled by the policy, train on it."""
    logprobs: numpy.ndarray[Any, Any]
    """float32: when the token was sampled."""
    advantages: numpy.ndarray[Any, Any]
    """float32; 0.0 where the mask is 0."""


class Group(msgspec.Struct, frozen=True):
    """All sessions of one group, each at its end."""

    group_id: str
    sessions: tuple[FinishedSession, ...]
    cursor: int = 0
    """Of its last result at the server: where to continue after this group."""

    @property
    def rewards(self) -> list[float]:
        """Of the sessions that may be trained on; an agent's own failure counts with 0.0. With process rewards it
        is the mean over a session's trainable tokens."""
        return session_rewards(self.sessions)

    @property
    def has_contrast(self) -> bool:
        """Whether the rewards differ. Without that the group teaches nothing: all advantages are 0."""
        return any(baseline.scale for baseline in baselines(self.rewards))

    def credited(self, estimator: Estimator = "grpo") -> list[CreditedTrace]:
        return credit(self.sessions, estimator)

    def rows(self, estimator: Estimator = "grpo") -> list[TrainingRow]:
        """The traces that can be trained on, with advantages. Needs numpy."""
        return [training_row(credited) for credited in self.credited(estimator)]


def training_row(credited: CreditedTrace) -> TrainingRow:
    import numpy  # noqa: PLC0415 - an optional dependency; `to_numpy` says so if it is missing

    trace = credited.trace
    arrays = trace.to_numpy()
    return TrainingRow(
        session_id=trace.session_id,
        group=trace.group_id,
        reward=trace.reward or 0.0,
        prompt_ids=arrays["prompt_ids"],
        completion_ids=arrays["completion_ids"],
        mask=arrays["mask"],
        logprobs=arrays["logprobs"],
        advantages=numpy.array(credited.advantages, numpy.float32),
    )
