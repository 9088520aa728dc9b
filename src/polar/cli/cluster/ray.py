"""`polar cluster ray up|status|down`: gateway nodes on the machines of a Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from polar.cli.options import ConfigOption, JsonOption, checked_config
from polar.cli.output import console, print_json, print_table

ray = typer.Typer(no_args_is_help=True, help="Gateway nodes as supervised actors of a Ray cluster.")

AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Of the Ray cluster.", show_default="RAY_ADDRESS, else this machine's cluster"
    ),
]


@ray.command("up")
def up(  # noqa: PLR0913 - each is an option of the command
    server: Annotated[
        str, typer.Option(envvar="POLAR_SERVER", help="Address of the rollout server, as the machines reach it.")
    ],
    address: AddressOption = None,
    nodes_per_machine: Annotated[int, typer.Option(min=1, max=64, help="Gateway nodes, a process each.")] = 1,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs to reserve on each machine, sessions included.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs to reserve, for an engine inside the nodes.")] = 0.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="A custom resource a machine must have. May be repeated."),
    ] = None,
    drain: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="As of `polar gateway`.")] = 0.0,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="For runs and logs, on a local disk of each machine.", show_default="/var/tmp/polar-ray-UID"
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Run gateway nodes on every machine of a Ray cluster that has the resources.

    Machines that join later get nodes too, those that leave lose theirs. Each
    machine needs the same Python, Ray and Polar, and `ray start` with the
    resources that you name here, such as --resources '{"polar": 1}'. The node
    token of this machine goes to the actors; the config file is copied.
    Returns at once: the fleet stays until `polar cluster ray down`.
    """
    from polar.cluster.ray.plan import FleetPlan
    from polar.config import CONFIG_FILE
    from polar.token_files import read_secret

    checked_config(config)
    file = config or Path(CONFIG_FILE)
    plan = FleetPlan(
        server=server,
        node_token=read_secret("node-token"),
        nodes_per_machine=nodes_per_machine,
        cpus=cpus,
        gpus=gpus,
        resources=dict(_amount(each) for each in resource or ()),
        folder=str(folder.absolute() if folder else f"/var/tmp/polar-ray-{os.getuid()}"),
        config=file.read_text(encoding="utf-8") if file.exists() else "",
        drain_s=drain,
    )
    fleet = _fleet()
    with fleet.connected(address):
        machines = fleet.up(plan)
    if json:
        print_json([vars(machine) for machine in machines])
        return
    console().print(f"{len(machines)} machines get {nodes_per_machine} gateway nodes each; those that join, too")
    if not machines:
        needs = ", ".join(f"{name}={amount:g}" for name, amount in plan.needed.items())
        console().print(f"none has {needs} yet: `ray start --resources` says what a machine has")
    console().print("watch: polar cluster ray status, polar nodes. stop: polar cluster ray down")


@ray.command("status")
def status(address: AddressOption = None, json: JsonOption = False) -> None:
    """Show the machines of the Ray cluster, and what their actors say.

    `polar nodes` shows the same fleet as the rollout server sees it.
    """
    fleet = _fleet()
    with fleet.connected(address):
        plan, machines = fleet.report()
    if json:
        print_json({"server": plan.server, "machines": [machine.as_json() for machine in machines]})
        return
    rows = [
        [
            each.machine.short_id,
            each.machine.address,
            str(each.status.nodes) if each.status else "-",
            "too small" if not each.fits else "starting, or waits for free resources",
        ]
        if each.status is None
        else [
            each.machine.short_id,
            each.machine.address,
            str(each.status.nodes),
            each.status.problem or f"logs in {each.status.folder}",
        ]
        for each in machines
    ]
    print_table(["machine", "address", "nodes", "state"], rows)


@ray.command("down")
def down(address: AddressOption = None) -> None:
    """Stop the fleet: nodes hand their sessions back to the rollout server.

    With `up --drain` sessions that run may end first.
    """
    fleet = _fleet()
    with fleet.connected(address):
        stopped = fleet.down()
    console().print(f"{stopped} machines have no gateway nodes any more")


def _amount(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = 0.0
    if not name or value <= 0:
        raise typer.BadParameter(f"{text!r} is not NAME=AMOUNT, such as polar=1", param_hint="--resource")
    return name, value


def _fleet() -> ModuleType:
    """Only these commands import Ray."""
    from polar.errors import PolarError

    try:
        from polar.cluster.ray import fleet
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PolarError("Ray is not installed here: pip install 'polar-rollout[ray]'") from error
    return fleet
