"""What a gateway knows of a session's calls when the session's run is judged: facts, no verdict."""

from __future__ import annotations

import msgspec

from polar.types.result import Failure


class Waits(msgspec.Struct, frozen=True):
    """How long a session waited for its model: none was being sampled, and at least one had no token."""

    paused_s: float = 0.0
    """While generation was paused."""
    engine_s: float = 0.0
    """For the gateway or the engine: rendering, a queue, the first token."""
    silent_s: float = 0.0
    """For how long all calls under way have been without a new token; 0.0 where none is under way."""

    @property
    def total_s(self) -> float:
        return self.paused_s + self.engine_s


class Refusal(msgspec.Struct, frozen=True):
    """A request of the harness that the gateway answered with an error."""

    code: str
    message: str
    cause: Failure | None = None
    """What failed inside, where the request itself was sound."""


class CallsOutcome(msgspec.Struct, frozen=True):
    failures: tuple[Failure, ...] = ()
    """One for each call that infrastructure failed and whose own retry has not succeeded, oldest first."""
    refusal: Refusal | None = None
    """The last request that was refused, where no request that came after it was answered."""
    exhausted: str = ""
    """The budget that has ended the session: `max_calls`, `max_tokens`, or nothing."""
