"""A fleet of gateway nodes on a Ray cluster: its actors are placed, listed and stopped here.

One detached actor, the `FleetActor`, compares Ray's machines with the plan every few seconds: a machine that joins
gets a `MachineActor`, one that is gone loses its own. Ray restarts all of them without limit. Nothing here looks
at sessions: those of a lost machine return to the queue when their leases expire.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polar.cluster.ray.machine_actor import MachineActor, MachineStatus
from polar.cluster.ray.plan import FLEET, NAMESPACE, PREFIX, FleetPlan, Machine, changes, machines_of
from polar.config import is_loopback
from polar.errors import PolarError

ANSWER_S = 20.0
"""How long an actor may take to answer: one that waits for resources never does."""
STOP_S = 90.0
"""How long an actor may take to stop its nodes, beside their drain."""
log = logging.getLogger("polar.cluster")
_RAY: Any = ray
"""Ray's decorators have no useful types."""


class FleetActor:
    """Runs in Ray, once for each cluster."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._stopped = asyncio.Event()
        self._placing = asyncio.get_running_loop().create_task(self._place())

    async def plan(self) -> FleetPlan:
        return self._plan

    async def stop(self) -> None:
        """Returns when nothing more is placed: a thread that is at it cannot be cancelled."""
        self._stopped.set()
        await asyncio.wait([self._placing])

    async def _place(self) -> None:
        while not self._stopped.is_set():
            try:
                await asyncio.to_thread(place_missing, self._plan)
            except (RayError, ValueError) as error:  # a name is taken while its actor dies
                log.warning("cannot place actors now: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._plan.look_every_s):
                    await self._stopped.wait()


def place_missing(plan: FleetPlan) -> None:
    wanted = changes(plan, machines_of(_RAY.nodes()), _names())
    for name in wanted.stop:
        _kill(name)
    for machine in wanted.start:
        place(plan, machine)


def place(plan: FleetPlan, machine: Machine) -> Any:
    """The machine's actor; it waits there until the machine has the resources free."""
    there = NodeAffinitySchedulingStrategy(machine.ray_node_id, soft=False)
    actor = _machine_actor(plan, name=machine.actor_name, scheduling_strategy=there)
    return actor.remote(plan, machine.short_id)


def _machine_actor(plan: FleetPlan, **options: Any) -> Any:
    reserved = {"num_cpus": plan.cpus, "num_gpus": plan.gpus, "resources": dict(plan.resources)}
    return _actor(MachineActor, **reserved, **options)


def check_amounts(plan: FleetPlan) -> None:
    """Raises here what would otherwise fail each try of the `FleetActor`, where no one sees it."""
    try:
        _machine_actor(plan, name=PREFIX)
    except (ValueError, OverflowError) as error:
        amounts = ", ".join(f"{name}={amount:g}" for name, amount in plan.resources.items())
        asked = f"--cpus {plan.cpus:g}, --gpus {plan.gpus:g}, --resource {amounts or 'none'}"
        raise PolarError(f"Ray cannot reserve what you ask for ({asked}): {error}") from error


def _actor(cls: type[Any], **options: Any) -> Any:
    always = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "max_restarts": -1}
    return _RAY.remote(cls).options(**always, **options)


@contextmanager
def connected(address: str | None) -> Generator[None]:
    """To the Ray cluster at the address; None: as Ray finds it (RAY_ADDRESS, or the one of this machine)."""
    try:
        _RAY.init(
            address=address or os.environ.get("RAY_ADDRESS") or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        where = address or "the address in RAY_ADDRESS, or this machine"
        raise PolarError(
            f"no Ray cluster at {where}: {error}; start one with `ray start --head`, or name it with --address"
        ) from error
    try:
        yield
    finally:
        _RAY.shutdown()


def up(plan: FleetPlan) -> list[Machine]:
    """Starts the fleet, and returns the machines that get nodes now."""
    check_amounts(plan)
    machines = machines_of(_RAY.nodes())
    if FLEET in _names():
        raise PolarError("this Ray cluster has a fleet already: `polar cluster ray down` stops it")
    others = {machine.address for machine in machines if not is_loopback(machine.address)}
    if is_loopback(urlsplit(plan.server).hostname or "") and len(others) > 1:
        raise PolarError(
            f"{plan.server} is a loopback address, which other machines cannot reach: start the server with "
            "--host, and name its address here with --server"
        )
    fleet = _actor(FleetActor, name=FLEET, num_cpus=0).remote(plan)
    _RAY.get(fleet.plan.remote(), timeout=ANSWER_S)
    return [machine for machine in machines if machine.fits(plan)]


@dataclass(frozen=True)
class MachineReport:
    """A machine of Ray, and what its actor says."""

    machine: Machine
    fits: bool
    status: MachineStatus | None
    """None: it does not answer, or there is none."""

    def as_json(self) -> Mapping[str, Any]:
        status = vars(self.status) if self.status else None
        return {**vars(self.machine), "fits": self.fits, "status": status}


def report() -> tuple[FleetPlan, list[MachineReport]]:
    plan = _running_plan()
    asked = {name: _RAY.get_actor(name).status.remote() for name in _names() if name.startswith(PREFIX)}
    ready: list[Any] = []
    if asked:
        ready, _ = _RAY.wait([*asked.values()], num_returns=len(asked), timeout=ANSWER_S)
    found: dict[str, MachineStatus] = {}
    for name, answer in asked.items():
        if answer in ready:
            try:
                found[name] = _RAY.get(answer)
            except RayError as error:
                log.info("%s: %s", name, error)
    return plan, [
        MachineReport(machine, machine.fits(plan), found.get(machine.actor_name))
        for machine in machines_of(_RAY.nodes())
    ]


def down() -> int:
    """Stops the fleet: its nodes drain or hand their sessions back. Returns the number of actors."""
    plan = _running_plan()
    fleet = _RAY.get_actor(FLEET)
    _RAY.get(fleet.stop.remote(), timeout=ANSWER_S)
    names = [name for name in _names() if name.startswith(PREFIX)]
    stopping = [_RAY.get_actor(name).stop.remote() for name in names]
    if stopping:
        _RAY.wait(stopping, num_returns=len(stopping), timeout=STOP_S + plan.drain_s)
    for name in (*names, FLEET):
        _kill(name)
    return len(names)


def _running_plan() -> FleetPlan:
    if FLEET not in _names():
        raise PolarError("this Ray cluster has no fleet: `polar cluster ray up --server URL` starts one")
    return _RAY.get(_RAY.get_actor(FLEET).plan.remote(), timeout=ANSWER_S)


def _names() -> list[str]:
    return list(_RAY.util.list_named_actors())


def _kill(name: str) -> None:
    """For good: Ray would restart an actor that only dies."""
    try:
        _RAY.kill(_RAY.get_actor(name), no_restart=True)
    except (ValueError, RayError) as error:
        log.info("%s is gone already: %s", name, error)
