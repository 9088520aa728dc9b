"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TasksArgument = Annotated[Path, typer.Argument(help="A task file: .toml, .json or .jsonl.")]
SessionArgument = Annotated[str, typer.Argument(help="A session's id, or the beginning of it.")]
RunOption = Annotated[str | None, typer.Option(help="The run; by default the latest that has the session.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")]
SamplesOption = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Samples of each task, whatever the file says.")
]
ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="POLAR_SERVER", help="Address of a rollout server.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
