"""`polar init`: a project to begin with, which runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

SCAFFOLD = Path(__file__).parent / "scaffold"
FILES = ("tasks.toml", "evaluator.py", "polar.toml", "README.md")


def init(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Made if it is missing.")] = Path()) -> None:
    """Write a project to begin with: tasks, a grader and a config.

    It runs at once with `polar run tasks.toml`. A file that is already
    there is never overwritten: then nothing is written at all.
    """
    from polar.cli.output import console

    write_scaffold(folder)
    out = console()
    for name in FILES:
        out.print(folder / name)
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    out.print(f"\nNext: {enter}polar run tasks.toml")


def write_scaffold(folder: Path) -> None:
    """Every file, or a `ConfigError` and none."""
    from polar.errors import ConfigError

    if there := [name for name in FILES if (folder / name).exists()]:
        raise ConfigError(
            f"{', '.join(there)} already in {folder.resolve()}; choose another folder: `polar init DIR`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x") as file:
                file.write((SCAFFOLD / name).read_text())
    except OSError as error:
        raise ConfigError(f"cannot write a project into {folder}: {error.strerror or error}") from error
