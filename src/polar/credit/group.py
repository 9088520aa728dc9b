"""A group: the finished sessions whose rewards are compared, and the rows a trainer makes of them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from polar.credit.advantages import (
    CreditedTrace,
    Estimator,
    FinishedSession,
    compared_rewards,
    credit,
    has_contrast,
)
from polar.types import Trace

if TYPE_CHECKING:
    import numpy


class TrainingRow(TypedDict):
    """One trace as arrays. The last five have one value per completion id."""

    session_id: str
    group: str
    reward: float
    """Of the session, unless the evaluator judged each trace."""
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
    versions: numpy.ndarray[Any, Any]
    """int32: of the policy that sampled the token; −1 where the mask is 0, or the version is no whole number."""


class Group(msgspec.Struct, frozen=True):
    """All sessions of one group, each at its end: what `PolarClient.groups` gives."""

    group_id: str
    sessions: tuple[FinishedSession, ...]
    cursor: int = 0
    """Of its last result at the server: where to continue after this group."""

    @property
    def rewards(self) -> list[float]:
        """Of the sessions in the baseline; an agent's own failure counts with 0.0. With process rewards it is the
        mean over a session's trainable tokens."""
        return [statistics.fmean(rewards) for rewards in compared_rewards(self.sessions)]

    @property
    def has_contrast(self) -> bool:
        """Whether the rewards differ. Without that the group teaches nothing: all advantages are 0."""
        return has_contrast(compared_rewards(self.sessions))

    def solved(self, at: float = 1.0) -> int:
        """Sessions with at least this reward. One without a reward is not solved, whoever caused that."""
        rewards = (session.result.reward for session in self.sessions)
        return sum(reward is not None and reward >= at for reward in rewards)

    def credited(self, estimator: Estimator = "grpo") -> list[CreditedTrace]:
        return credit(self.sessions, estimator)

    def rows(self, estimator: Estimator = "grpo") -> list[TrainingRow]:
        """The traces that can be trained on, with advantages. Needs numpy."""
        return [training_row(credited) for credited in self.credited(estimator)]


def training_row(credited: CreditedTrace) -> TrainingRow:
    trace = credited.trace
    arrays = trace.to_numpy()  # names numpy as the fix if it is missing
    import numpy  # noqa: PLC0415 - an optional dependency

    return TrainingRow(
        session_id=trace.session_id,
        group=trace.group_id,
        reward=trace.reward or 0.0,
        prompt_ids=arrays["prompt_ids"],
        completion_ids=arrays["completion_ids"],
        mask=arrays["mask"],
        logprobs=arrays["logprobs"],
        advantages=numpy.array(credited.advantages, numpy.float32),
        versions=numpy.where(arrays["mask"], numpy.array(_versions(trace), numpy.int32), -1),
    )


def _versions(trace: Trace) -> list[int]:
    versions = [-1] * len(trace.response_ids)
    for span in trace.spans:
        for part in span.versions:
            if part.version.isdecimal():
                start = span.start + part.start
                versions[start : start + part.length] = [int(part.version)] * part.length
    return versions
