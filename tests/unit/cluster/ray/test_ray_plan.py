"""Which machines of Ray get gateway nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from polar.cluster.ray.plan import FleetPlan, Machine, changes, machines_of

PLAN = FleetPlan("http://server:8700", "secret", cpus=4, resources={"polar": 1})


def machine(number: int, **resources: float) -> Machine:
    return Machine(f"{number:056x}"[::-1], f"10.0.0.{number}", resources or {"CPU": 8, "polar": 1})


def test_a_machine_needs_every_resource_in_full() -> None:
    assert machine(1).fits(PLAN)
    assert machine(1, CPU=4, polar=1, memory=5).fits(PLAN)
    assert not machine(1, CPU=8).fits(PLAN)
    assert not machine(1, CPU=2, polar=1).fits(PLAN)
    assert not machine(1, CPU=8, polar=0.5).fits(PLAN)


def test_no_resource_is_needed_of_which_nothing_is_reserved() -> None:
    assert machine(1, memory=1).fits(FleetPlan("http://server", "secret", cpus=0))


def test_machines_that_join_get_an_actor_and_those_that_leave_lose_it() -> None:
    stays, joins, leaves, small = machine(1), machine(2), machine(3), machine(4, CPU=1)
    found = changes(PLAN, [stays, joins, small], [stays.actor_name, leaves.actor_name, "polar-fleet", "another"])
    assert found.start == (joins,)
    assert found.stop == (leaves.actor_name,), "actors of others stay"


def test_nothing_changes_once_all_is_placed() -> None:
    found = changes(PLAN, [machine(1), machine(2)], [machine(1).actor_name, machine(2).actor_name])
    assert (found.start, found.stop) == ((), ())


def test_dead_machines_of_ray_do_not_count() -> None:
    nodes = [
        {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 1.0}, "Alive": True},
        {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Resources": {}, "Alive": False},
    ]
    assert machines_of(nodes) == [Machine("a", "10.0.0.1", {"CPU": 1.0})]


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(PLAN)


@pytest.mark.parametrize(
    "part", ["polar", "polar.cli.app", "polar.server", "polar.node", "polar.cluster.ray.plan"]
)
def test_ray_is_imported_by_its_own_commands_alone(part: str) -> None:
    code = f"import sys, {part}; sys.exit('ray' in sys.modules or 'kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
