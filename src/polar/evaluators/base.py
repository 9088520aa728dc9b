"""The evaluator port. An evaluator runs after the harness is dead and its slot is sealed."""

from __future__ import annotations

from collections.abc import Awaitable
from numbers import Real
from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel, ValidationError

from polar.errors import EvaluatorError
from polar.runtimes.base import Runtime
from polar.types import Call, Score, TaskRequest, Trajectory


class Evidence(msgspec.Struct, frozen=True):
    task: TaskRequest
    runtime: Runtime
    trajectory: Trajectory
    exit_code: int | None
    """None: the harness was killed, by a time-out or by us."""
    timed_out: bool
    patch: Path | None = None
    """Patch of the harness's changes, on the node's disk. None: the task did not ask for it, or it could not be
    made."""
    calls: tuple[Call, ...] = ()
    """Every captured call, oldest first: `call_id` is the key of `Score.call_rewards`, `response` the reply."""


Verdict = Score | float
"""A number is the reward; True and False are 1 and 0."""


class Evaluator(Protocol):
    Options: type[BaseModel]

    def evaluate(self, evidence: Evidence) -> Verdict | Awaitable[Verdict]:
        """Returns a verdict. Raises if there can be none: that is not a reward of zero. Runs in a thread of its
        own, as `def` or as `async def`."""
        ...


class WrongScore(EvaluatorError):
    """An evaluator returned a value that is not a verdict."""


def score_of(returned: object, evaluator: str) -> Score:
    """What an evaluator returned, as a score. Raises `WrongScore`."""
    wanted = "return a Score or a finite number; if there is no verdict, raise or return Score(reward=None)"
    try:
        if isinstance(returned, Score):
            return Score.model_validate(returned.model_dump())  # also one that was made without checks
        if isinstance(returned, Real):
            return Score(reward=float(returned))
    except (ValidationError, ValueError, OverflowError) as error:
        raise WrongScore(f"evaluator {evaluator!r} returned {_shown(returned)}: {wanted}") from error
    raise WrongScore(f"evaluator {evaluator!r} returned {_shown(returned)}: {wanted}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
