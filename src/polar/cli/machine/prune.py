"""`polar prune`: removes workspaces of dead runs, and images that no session has used for long."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption
from polar.cli.output import clock, console, print_error, print_json, print_table

if TYPE_CHECKING:
    from polar.runs.prune import Prunable

EXIT_LEFT = 1
EXIT_REFUSED = 2
DAY_S = 86400.0


def prune(
    ctx: typer.Context,
    unused_days: Annotated[
        float, typer.Option(min=0, help="Images that a session used within so many days stay.")
    ] = 14,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove workspaces of dead runs, and images that were not used for long.

    Only what Polar made: images of tasks' Dockerfiles, built and pulled ones.
    Nothing that a live node or a container uses. Results, traces and logs of runs
    stay; `polar rm` removes runs. Also ends processes and containers that killed
    nodes left running. Exit code 1 if something could not be removed.
    """
    from polar.node.leftovers import sweep_runtimes
    from polar.runs.prune import find_prunable
    from polar.runs.prune import prune as remove
    from polar.runs.stored import runs_dir_of

    found = asyncio.run(find_prunable(runs_dir_of(ctx.obj), unused_days * DAY_S))
    if not json:
        _show(found, unused_days)
    problems: dict[str, str] = {}
    if not dry_run:
        if found:
            ask_to_remove(len(found), yes=yes)
        # Also without any workspace: its run may have been removed by hand, or be in another folder.
        ended = asyncio.run(sweep_runtimes())
        if ended and not json:
            console().print(f"ended what {ended} dead nodes or sessions had left running")
        problems = asyncio.run(remove(found))
    _report(found, problems, dry_run=dry_run, json=json)
    if problems:
        raise typer.Exit(EXIT_LEFT)


def _show(found: list[Prunable], unused_days: float) -> None:
    if not found:
        console().print(f"nothing to remove (images that were used in the last {unused_days:g} days stay)")
        return
    rows = [(each.kind, each.name, megabytes(each.size_bytes), clock(each.used_at)) for each in found]
    total = sum(each.size_bytes for each in found)
    print_table(["kind", "what", "#MB", "last used"], [*rows, ("", "total", megabytes(total), "")])


def ask_to_remove(count: int, *, yes: bool) -> None:
    """Ends the command unless `yes` is given or the user says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        print_error("nothing was removed: --yes confirms it where no one can be asked, --dry-run only looks")
        raise typer.Exit(EXIT_REFUSED)
    typer.confirm(f"Remove {'it' if count == 1 else f'these {count}'}?", abort=True)


def _report(found: list[Prunable], problems: dict[str, str], *, dry_run: bool, json: bool) -> None:
    removed = [] if dry_run else [each for each in found if each.name not in problems]
    freed = sum(each.size_bytes for each in removed)
    if json:
        print_json(
            {
                "found": [_row(each) for each in found],
                "removed": [each.name for each in removed],
                "freed_bytes": freed,
                "problems": problems,
            }
        )
        return
    for name, problem in problems.items():
        print_error(f"{name}: {problem}")
    if removed:
        console().print(f"removed {len(removed)}, {megabytes(freed)} MB")


def _row(each: Prunable) -> dict[str, Any]:
    return {"kind": each.kind, "name": each.name, "size_bytes": each.size_bytes, "used_at": each.used_at}


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"
