"""The files of deploy/ name commands, options, variables and images that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from polar.cli.app import app

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def commands() -> list[tuple[str, ...]]:
    """What units and images start, without the program."""
    started = re.findall(r"^ExecStart=\S+ (.*)$", "\n".join(unit.read_text() for unit in UNITS), re.MULTILINE)
    images = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    listed = [tomllib.loads(f"x = {image}")["x"][1:] for image in images]
    return [*(tuple(shlex.split(line)) for line in started), *map(tuple, listed)]


def test_two_units_and_two_images_start_something() -> None:
    assert [command[0] for command in commands()] == ["gateway", "server", "server", "gateway"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_is_accepted_as_it_stands(command: tuple[str, ...]) -> None:
    """Parsed, not run."""
    group: Any = typer.main.get_command(app)
    found = group.commands[command[0]]
    assert found.make_context(command[0], list(command[1:])).params


def test_compose_starts_the_images_that_the_script_builds() -> None:
    script = (DEPLOY / "images.sh").read_text()
    targets = re.findall(r"^for target in (.*); do$", script, re.MULTILINE)[0].split()
    assert {service["image"] for service in COMPOSE["services"].values()} == {f"polar-{name}" for name in targets}
    stages = re.findall(r"AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert {*targets} <= {*stages}


def test_compose_is_closed_by_default() -> None:
    server = COMPOSE["services"]["server"]
    assert server["ports"] == ["127.0.0.1:8700:8700"]
    for service in COMPOSE["services"].values():
        assert all(":?" in value for value in service["environment"].values()), "a missing token must be refused"


def test_the_example_names_the_variables_that_are_wanted() -> None:
    named = set(re.findall(r"^(\w+)=", (DEPLOY / "polar.env.example").read_text(), re.MULTILINE))
    assert named == set().union(*(service["environment"] for service in COMPOSE["services"].values()))
    page = (ROOT / "docs/service.md").read_text()
    assert [name for name in named if f"`{name}`" not in page] == []


def test_named_volumes_are_declared() -> None:
    mounts = [mount.partition(":")[0] for service in COMPOSE["services"].values() for mount in service["volumes"]]
    assert {*mounts} == COMPOSE["volumes"].keys()
