"""How a gateway turns requests into sampled replies: the port that token mode and chat mode fill."""

from __future__ import annotations

from typing import Protocol

from polar.gateway.calls.admission import Admitted
from polar.gateway.calls.generation import Generation
from polar.gateway.calls.sampling import Sampled
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.slots import OpenSlot


class Mode(Protocol):
    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        """Counts a request in. Raises `Problem` when it is refused, and then it has cost nothing."""
        ...

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        """How many tokens the request's prompt has. Samples and records nothing."""
        ...

    async def sample(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> None:
        """Fills `sampled` and tells the generation what it says. Raises `Problem` when the engine or the renderer
        fails; the slot remembers why."""
        ...
