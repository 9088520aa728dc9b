"""The evaluator port. It looks at the workspace after the harness is dead and its slot sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel

from polar.runtimes.base import Runtime
from polar.types import Score, TaskRequest, Trajectory


class Evidence(msgspec.Struct, frozen=True):
    task: TaskRequest
    runtime: Runtime
    trajectory: Trajectory
    exit_code: int | None
    """None: the harness was killed, by a time-out or by us."""
    timed_out: bool
    patch: Path | None = None
    """What the harness changed in the workspace, on the node's disk. None: the task did not ask for it, or it
    could not be taken."""


class Evaluator(Protocol):
    Options: type[BaseModel]

    async def evaluate(self, evidence: Evidence) -> Score:
        """A verdict, or an error: an evaluator that cannot tell raises, it does not say zero."""
        ...
