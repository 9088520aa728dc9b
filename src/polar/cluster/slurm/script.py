"""The batch script of a fleet in a Slurm job: directives and variables from a plan, and a body that never changes
(`job.sh`), which a reader can check as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from polar.types import Strict

BODY = Path(__file__).parent / "job.sh"
HAND_BACK_S = 60
"""What nodes and server need to stop, besides the drain."""


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it must be one line")
    return text


def _time(text: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise ValueError(f"{text!r} is not a time limit of Slurm, such as 04:00:00 or 2-00")
    return text


Line = Annotated[str, AfterValidator(_one_line)]


class SlurmPlan(Strict):
    machines: int = Field(default=1, ge=1)
    nodes_per_machine: int = Field(default=1, ge=1, le=64)
    cpus: int = Field(default=4, ge=1)
    """Of each machine, for all its gateway nodes and their sessions."""
    time: Annotated[str, AfterValidator(_time)] = "04:00:00"
    server: Line = ""
    """Address of a server that runs already; empty: the job has its own, on its first machine."""
    host: Line = ""
    """Address on which that one listens; empty: the machine's own."""
    port: int = Field(default=0, ge=0, le=65535)
    state: Line = "polar-slurm"
    """Its folder, for database and address."""
    tasks: Line = ""
    """A task file: the job submits it, and ends with it."""
    config: Line = ""
    """Path of a polar.toml that all machines can read."""
    local: Line = "/tmp"
    """Folder on a local disk of each machine."""
    drain_s: int = Field(default=0, ge=0)
    polar: Line = "polar"
    """The command, as the machines find it."""
    options: tuple[Line, ...] = ()
    """Further options of sbatch, such as `--partition=cpu`."""

    @model_validator(mode="after")
    def _is_consistent(self) -> SlurmPlan:
        for option in self.options:
            if not option.startswith("-"):
                raise ValueError(f"{option!r} is no option of sbatch; write it as --partition=cpu")
        if self.server and (self.host or self.port):
            raise ValueError(
                "host and port are those of the job's own server; with another server they say nothing"
            )
        return self


def script(plan: SlurmPlan) -> str:
    return "\n".join(["#!/bin/bash", *_directives(plan), *_variables(plan)]) + "\n" + BODY.read_text("utf-8")


def _directives(plan: SlurmPlan) -> list[str]:
    options = [
        "--job-name=polar",
        f"--nodes={plan.machines}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={plan.cpus}",
        f"--time={plan.time}",
        # The script stops its nodes before the time is up; Slurm may be a minute late.
        f"--signal=B:TERM@{plan.drain_s + 2 * HAND_BACK_S}",
        # A machine that fails does not end the job: its sessions run on the others.
        "--no-kill",
        "--output=polar-%j.log",
        *plan.options,
    ]
    return [f"#SBATCH {option}" for option in options]


def _variables(plan: SlurmPlan) -> list[str]:
    values = {
        "POLAR": plan.polar,
        "POLAR_SERVER": plan.server.rstrip("/"),
        "POLAR_HOST": plan.host,
        "POLAR_PORT": str(plan.port),
        "POLAR_STATE": plan.state,
        "POLAR_TASKS": plan.tasks,
        "POLAR_CONFIG": plan.config,
        "POLAR_LOCAL": plan.local,
        "POLAR_WORKERS": str(plan.nodes_per_machine),
        "POLAR_DRAIN": str(plan.drain_s),
    }
    return [f"{name}={shlex.quote(value)}" for name, value in values.items()]
