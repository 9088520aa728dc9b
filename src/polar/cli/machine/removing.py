"""What every command that removes something does alike: it asks, and names sizes in the same unit."""

from __future__ import annotations

import sys

import typer

from polar.cli.output import print_error

EXIT_LEFT = 1
EXIT_REFUSED = 2


def ask_to_remove(count: int, *, yes: bool) -> None:
    """Ends the command unless `yes` is given or the user says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        print_error("nothing was removed: --yes confirms it where no one can be asked, --dry-run only looks")
        raise typer.Exit(EXIT_REFUSED)
    typer.confirm(f"Remove {'it' if count == 1 else f'these {count}'}?", abort=True)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"
