"""What the gateway knows about a session's calls when the run has ended: facts for the verdict."""

from __future__ import annotations

import msgspec

from polar.types.result import Failure


class Waits(msgspec.Struct, frozen=True):
    """How long a session waited for its model: at least one call had no token yet, and none was being sampled."""

    paused_s: float = 0.0
    """While generation was paused."""
    engine_s: float = 0.0
    """For the gateway or the engine: rendering, a queue, the first token."""
    silent_s: float = 0.0
    """Time since the last new token of the calls under way; 0.0 if there are none."""

    @property
    def total_s(self) -> float:
        return self.paused_s + self.engine_s


class Refusal(msgspec.Struct, frozen=True):
    """A request of the harness that the gateway answered with an error."""

    code: str
    message: str
    cause: Failure | None = None
    """The failure on our side, if the request itself was valid."""


class CallsOutcome(msgspec.Struct, frozen=True):
    failures: tuple[Failure, ...] = ()
    """One for each call that failed through infrastructure and was not retried with success, oldest first."""
    refusal: Refusal | None = None
    """The last refused request, unless a later one was answered."""
    exhausted: str = ""
    """Name of the exhausted budget that ended the session: `max_calls` or `max_tokens`; else empty."""
