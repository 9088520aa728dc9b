"""The curves of a trainer."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, StringConstraints

from polar.types.base import MAX_COUNT, Id, Strict

MAX_POINTS = 1000
"""Training points in one request."""
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/@^-]{0,99}$")]
"""Such as `reward`, `pass@1` or `loss/policy`."""


class TrainingPoint(Strict):
    """What a trainer measured at one step."""

    step: int = Field(ge=0, le=MAX_COUNT)
    phase: Literal["train", "eval"] = "train"
    """Evaluation on held-out tasks is kept apart from the rewards of training."""
    at: FiniteFloat = Field(default_factory=time.time, ge=0, le=1e11)
    """Unix seconds."""
    metrics: dict[MetricName, FiniteFloat] = Field(min_length=1, max_length=200)


class TrainingReport(Strict):
    points: tuple[TrainingPoint, ...] = Field(min_length=1, max_length=MAX_POINTS)


class TrainingRun(Strict):
    run_id: Id
    points: int
    last_step: int
    started: float
    """When its first point came: Unix seconds."""
    updated: float
    """When its newest point came."""


class TrainingPage(Strict):
    points: tuple[TrainingPoint, ...]
    """In the order in which they came; a point that was replaced has its new place."""
    cursor: int
    """Where to continue."""
