"""Arguments and options that several commands have, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polar.config import Config

TasksArgument = Annotated[Path, typer.Argument(help="A task file, a folder, or git+URL@REV#FOLDER.")]
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
UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def age_s(text: str, option: str) -> float:
    """Seconds of an age such as `30m`, `12h`, `7d` or `4w`."""
    import re

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no age; write 30m, 12h, 7d or 4w", param_hint=option)
    return float(found[1]) * UNITS_S[found[2]]


CommandForm = Callable[[str], str]
"""A command as the user would type it, from its name and arguments."""


def again(runs_dir: Path | None) -> CommandForm:
    """For printed next commands: called as this one was, with the --runs-dir that was given."""
    import shlex
    import shutil
    import sys

    polar = "polar" if shutil.which("polar") else sys.argv[0]
    end = "" if runs_dir is None else f" --runs-dir {shlex.quote(str(runs_dir))}"
    return lambda command: f"{polar} {command}{end}"


def checked_config(path: Path | None) -> Config:
    """The config of a command that runs sessions: its engine and renderer are known, and have such options."""
    from polar import config as configuration
    from polar.runs.running import config_problems

    chosen = configuration.load(path)
    if problems := config_problems(chosen):
        raise configuration.refused_in_file(problems, path)
    return chosen


def options_of(pairs: list[str]) -> dict[str, Any]:
    """A plug-in's options from `key=value`: values that are valid JSON are read as JSON, others as text."""
    import orjson

    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not key=value", param_hint="--option")
        try:
            options[key] = orjson.loads(value)
        except orjson.JSONDecodeError:
            options[key] = value
    return options
