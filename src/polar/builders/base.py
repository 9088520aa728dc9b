"""The builder port. A builder is a pure function of a session's calls, so a stored session can be built again by
another builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel

from polar.types import Call, Trajectory


class Builder(Protocol):
    Options: type[BaseModel]

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        """`calls`: in order of arrival, parents before children. Every sampled token comes out exactly once:
        trainable in one trace, or in the dropped list with its reason."""
        ...
