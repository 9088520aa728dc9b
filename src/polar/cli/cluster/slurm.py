"""`polar cluster slurm`: writes a batch script that runs gateway nodes, and perhaps a server, in one job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli.cluster.checked_plan import checked_plan


def slurm(  # noqa: PLR0913 - each is an option of the command
    machines: Annotated[int, typer.Option(min=1, help="Machines of the job.")] = 1,
    nodes_per_machine: Annotated[int, typer.Option(min=1, max=64, help="Gateway nodes, a process each.")] = 1,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of each machine, sessions included.")] = 4,
    time: Annotated[str, typer.Option(help="Time limit of the job, as Slurm takes it.")] = "04:00:00",
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A server that runs already.", show_default="one in the job")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address of the job's server.", show_default="the machine's own")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the job's server; 0: any free one.")] = 0,
    state: Annotated[Path, typer.Option(help="Folder of the job's server: database and address.")] = Path(
        "polar-slurm"
    ),
    tasks: Annotated[Path | None, typer.Option(help="A task file to submit; the job ends with it.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A polar.toml that all machines can read.", show_default="the defaults")
    ] = None,
    local: Annotated[Path, typer.Option(help="A folder on a local disk of each machine.")] = Path("/tmp"),
    drain: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Before the time limit, let sessions end for this long.")
    ] = 0,
    polar: Annotated[str, typer.Option(help="The command, as the machines find it.")] = "polar",
    option: Annotated[
        list[str] | None, typer.Option(help="Another option of sbatch: --option=--partition=cpu. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a file.", show_default="stdout")] = None,
) -> None:
    """Write a batch script of gateway nodes for Slurm, for `sbatch`.

    Without --server the job has a server of its own, on its first machine; its
    log names the address. The tokens are those of your config folder, which
    all machines must be able to read. `scancel --batch --signal=TERM JOB` stops
    it in order; a plain `scancel` gives nodes the KillWait of Slurm.
    """
    from polar.cluster.slurm.script import SlurmPlan, script
    from polar.config import load

    load(config)  # a mistake in it shows here, not in the job
    plan = checked_plan(
        SlurmPlan,
        **{"machines": machines, "nodes_per_machine": nodes_per_machine, "cpus": cpus, "time": time},
        **{"server": server or "", "host": host or "", "port": port, "state": str(state.absolute())},
        **{"local": str(local), "drain_s": drain, "polar": polar, "options": tuple(option or ())},
        tasks=str(tasks.absolute()) if tasks else "",
        config=str(config.absolute()) if config else "",
    )
    if out is None:
        typer.echo(script(plan), nl=False)
        return
    out.write_text(script(plan), encoding="utf-8")
    typer.echo(f"{out}: submit it with `sbatch {out}`")
