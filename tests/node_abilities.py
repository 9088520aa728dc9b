"""Abilities of nodes in tests."""

from __future__ import annotations

from typing import Any

from polar import __version__, registry
from polar.types import PROTOCOL, NodeAbilities


def able(**fields: Any) -> NodeAbilities:
    """A node that can run every task without a module of its own, but for what is given."""
    everything = {
        "runtimes": sorted(registry.BUILT_IN["runtime"]),
        "permits": ["build", "mounts", "prepare_network"],
        "harnesses": sorted(registry.BUILT_IN["harness"]),
    }
    return NodeAbilities.model_validate({"polar": __version__, "protocol": PROTOCOL, **everything, **fields})
