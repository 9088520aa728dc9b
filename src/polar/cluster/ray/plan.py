"""What a fleet on Ray should look like: which machines get an actor, under which name. Imports no Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "polar"
FLEET = "polar-fleet"
"""Name of the actor that places the others."""
PREFIX = "polar-machine-"
ID_LETTERS = 16
"""Of a Ray node's id, in names and folders: unix sockets below the folder must stay short."""


@dataclass(frozen=True)
class FleetPlan:
    """All that the actors need to know. Ray keeps it, so that a restarted actor has it again."""

    server: str
    """Address of the rollout server."""
    node_token: str = field(repr=False)
    nodes_per_machine: int = 1
    cpus: float = 1.0
    """CPUs that Ray reserves on each machine for all its gateway nodes and their sessions."""
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom resources that a machine must have, reserved as well."""
    folder: str = ""
    """On each machine, for runs and logs; a local disk."""
    config: str = ""
    """Text of the polar.toml; empty: the defaults."""
    drain_s: float = 0.0
    look_every_s: float = 2.0
    """How often machines are compared with actors."""

    @property
    def needed(self) -> dict[str, float]:
        """What a machine must have in all."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount > 0}


@dataclass(frozen=True)
class Machine:
    """A node of Ray: a raylet."""

    ray_node_id: str
    address: str
    resources: Mapping[str, float]

    def fits(self, plan: FleetPlan) -> bool:
        return all(self.resources.get(name, 0.0) >= amount for name, amount in plan.needed.items())

    @property
    def actor_name(self) -> str:
        return PREFIX + self.short_id

    @property
    def short_id(self) -> str:
        return self.ray_node_id[:ID_LETTERS]


def machines_of(nodes: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """The living ones, from `ray.nodes()`."""
    return [
        Machine(str(node["NodeID"]), str(node["NodeManagerAddress"]), dict(node["Resources"]))
        for node in nodes
        if node["Alive"]
    ]


@dataclass(frozen=True)
class Changes:
    """What to do so that the actors are those of the plan."""

    start: tuple[Machine, ...]
    stop: tuple[str, ...]
    """Names of actors whose machine is gone."""


def changes(plan: FleetPlan, machines: Iterable[Machine], actors: Iterable[str]) -> Changes:
    """`actors`: names of all living actors of the namespace."""
    wanted = {machine.actor_name: machine for machine in machines if machine.fits(plan)}
    existing = {name for name in actors if name.startswith(PREFIX)}
    start = tuple(machine for name, machine in sorted(wanted.items()) if name not in existing)
    return Changes(start, tuple(sorted(existing - wanted.keys())))
