"""The builder port. A builder is a pure function of a session's calls, so any stored session can be built
again in another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel

from polar.types import Call, Trajectory


class Builder(Protocol):
    Options: type[BaseModel]

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        """Calls in the order of their arrival, parents before children. Every sampled token comes out exactly
        once: trainable in one trace, or in the dropped list with its reason."""
        ...
