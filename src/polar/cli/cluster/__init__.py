"""`polar cluster`: gateway nodes on many machines, placed by what runs these machines already."""

from __future__ import annotations

import typer

from polar.cli.cluster.kubernetes import kubernetes
from polar.cli.cluster.ray import ray
from polar.cli.cluster.slurm import slurm

cluster = typer.Typer(
    no_args_is_help=True,
    help="Gateway nodes on many machines, placed by Ray, Kubernetes or Slurm.",
)
cluster.add_typer(ray, name="ray")
cluster.command("kubernetes")(kubernetes)
cluster.command("slurm")(slurm)
