"""The policy: which weights sample, and whether generation is paused."""

from __future__ import annotations

from pydantic import Field

from polar.types.base import Id, Strict


class Policy(Strict):
    """Version of the weights, and whether generation is paused, for every node."""

    version: str = ""
    """Recorded on each call that begins under it."""
    paused: bool = False
    """Calls wait, with heartbeats, until generation is resumed."""
    updates: int = Field(default=0, ge=0)
    """How often the version has changed; counted by the server."""
    revision: int = Field(default=0, ge=0)
    """How often anything here has changed. A node reports the revision it follows."""


class PolicyChange(Strict):
    """A trainer's change of the policy. Only the server sets the counts."""

    version: str | None = None
    """None: unchanged."""
    paused: bool | None = None
    """None: unchanged."""


class Drain(Strict):
    """Progress of a pause: what is still being generated."""

    policy: Policy
    generating: int
    """Generations under way at the live nodes, as last reported."""
    unheard: tuple[Id, ...] = ()
    """Live nodes that have not acknowledged the current policy."""

    @property
    def done(self) -> bool:
        """Nothing is generated until generation is resumed."""
        return self.policy.paused and not self.unheard and self.generating == 0
