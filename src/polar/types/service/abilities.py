"""What a gateway node can run: a node says it when it registers, and the server leases by it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from polar.types.base import MAX_COUNT, Strict

PROTOCOL = 2
"""Version of what nodes and server send each other. A change that either side of an older Polar would refuse or
misread raises it: a field of a request that has no default, any field of a reply, another meaning of one."""
MAX_IMAGES = 500
"""Of one runtime. A node with more does not list them."""

AbilityName = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class NodeAbilities(Strict):
    """What a node can run, as it found on its machine. Heartbeats correct it."""

    polar: str = Field(default="", max_length=100)
    """Its version."""
    protocol: int = Field(ge=1, le=MAX_COUNT)
    """`PROTOCOL` of its Polar."""
    runtimes: tuple[AbilityName, ...] = Field(default=(), max_length=100)
    """Those of Polar that work on its machine."""
    harnesses: tuple[AbilityName, ...] = Field(default=(), max_length=200)
    """Those of Polar that are installed or can be."""
    modules: tuple[AbilityName, ...] = Field(default=(), max_length=1000)
    """Modules that it may import for tasks, each with all below it; `*`: any (`node.allowed_modules`)."""
    images: dict[AbilityName, Annotated[tuple[AbilityName, ...], Field(max_length=MAX_IMAGES)]] = Field(
        default={}, max_length=100
    )
    """By runtime: images on its machine. A runtime that is not a key here may have any, or may get any."""
    engine: str = Field(default="", max_length=200)
    """Name of its engine."""
    model: str = Field(default="", max_length=1000)
    """The model, as its engine names it."""
    permits: tuple[AbilityName, ...] = Field(default=(), max_length=100)
    """Settings of `[permits]` that its operator has turned on, or filled."""
    labels: tuple[AbilityName, ...] = Field(default=(), max_length=100)
    """What its operator says of it (`node.labels`)."""
