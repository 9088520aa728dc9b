"""`polar gc`: removes from this machine what no session uses any more, or from a rollout server what is old."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.machine.gc_server import ServerRules, collect_at_server
from polar.cli.machine.removing import EXIT_LEFT, ask_to_remove, megabytes
from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import clock, console, print_error, print_json, print_table

if TYPE_CHECKING:
    from polar.runs.prune import Prunable

DAY_S = 86400.0


def gc(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    unused_days: Annotated[
        float, typer.Option(min=0, help="Images and checkouts that a session used within so many days stay.")
    ] = 14,
    at_server: Annotated[
        bool, typer.Option("--at-server", help="At the rollout server, by its rules of retention.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="At the server: groups that ended so long ago, as 12h, 7d or 4w."),
    ] = None,
    unfetched: Annotated[
        bool, typer.Option("--unfetched", help="At the server: also results that no client has fetched.")
    ] = False,
    server: ServerOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove what is left over on this machine, or what is old at a rollout server.

    On this machine: workspaces of dead runs; images, checkouts and bundles of
    repositories that were not used for long. Only what Polar made, and nothing
    that a live node or a container uses. Results, traces and logs of runs stay;
    `polar rm` removes runs. Also ends processes and containers that killed nodes
    left running. Exit code 1 if something could not be removed.

    With --at-server: results with their traces, events and left-over uploads, by
    the server's own retention (server.retention) and --older-than. Open groups
    stay, and so does what no client has fetched, unless --unfetched.

        polar gc --dry-run
        polar gc --at-server --older-than 30d
    """
    if at_server:
        collect_at_server(server, ServerRules(older_than, unfetched), dry_run=dry_run, yes=yes, json=json)
        return
    if older_than or unfetched:
        why = "only with --at-server; `polar rm --older-than` removes runs of this machine"
        raise typer.BadParameter(why, param_hint="--older-than" if older_than else "--unfetched")
    _collect_here(ctx.obj, unused_days, dry_run=dry_run, yes=yes, json=json)


def _collect_here(runs_dir: Path | None, unused_days: float, *, dry_run: bool, yes: bool, json: bool) -> None:
    from polar.node.leftovers import sweep_runtimes
    from polar.runs.prune import find_prunable
    from polar.runs.prune import prune as remove
    from polar.runs.stored import runs_dir_of

    found = asyncio.run(find_prunable(runs_dir_of(runs_dir), unused_days * DAY_S))
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
        console().print(f"nothing to remove (what was used in the last {unused_days:g} days stays)")
        return
    rows = [(each.kind, each.name, megabytes(each.size_bytes), clock(each.used_at)) for each in found]
    total = sum(each.size_bytes for each in found)
    print_table(["kind", "what", "#MB", "last used"], [*rows, ("", "total", megabytes(total), "")])


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
