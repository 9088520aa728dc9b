"""`polar rm`: removes runs, by their ids or by age and number."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.machine.removing import EXIT_LEFT, ask_to_remove, megabytes
from polar.cli.options import JsonOption, age_s
from polar.cli.output import clock, console, print_error, print_json, print_table

if TYPE_CHECKING:
    from polar.runs.remove import RemovableRun


def rm(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs, or the beginnings of them.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="All runs that ended so long ago, as 12h, 7d or 4w.")
    ] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="All runs but so many of the newest.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove runs with their results, calls, traces and logs.

    A live run is refused, and --older-than and --keep leave it; both together
    remove only what both would. Exit code 1: something could not be removed.
    2: refused.

        polar rm 20261115-051233-ab12
        polar rm --older-than 7d --keep 10
    """
    from polar.runs.remove import removable, remove_runs

    found = [removable(run) for run in _chosen(ctx, runs or [], older_than, keep)]
    if not json:
        _show(found)
    problems: dict[str, str] = {}
    if found and not dry_run:
        ask_to_remove(len(found), yes=yes)
        problems = asyncio.run(remove_runs(found))
    _report(found, problems, dry_run=dry_run, json=json)
    if problems:
        raise typer.Exit(EXIT_LEFT)


def _chosen(ctx: typer.Context, names: list[str], older_than: str | None, keep: int | None) -> list[Any]:
    from polar.errors import ConfigError
    from polar.runs.remove import RetentionRule, named_runs, runs_let_go
    from polar.runs.stored import runs_dir_of

    by_rule = older_than is not None or keep is not None
    if bool(names) == by_rule:
        raise ConfigError("name the runs to remove (`polar ls` lists them), or give --older-than AGE or --keep N")
    runs_dir = runs_dir_of(ctx.obj)
    if names:
        return named_runs(runs_dir, names)
    return runs_let_go(
        runs_dir, RetentionRule(keep, None if older_than is None else age_s(older_than, "--older-than"))
    )


def _show(found: list[RemovableRun]) -> None:
    if not found:
        console().print("no run to remove")
        return
    rows = [(each.paths.run_id, megabytes(each.size_bytes), clock(each.used_at)) for each in found]
    total = sum(each.size_bytes for each in found)
    print_table(["run", "#MB", "last changed"], [*rows, ("total", megabytes(total), "")])


def _report(found: list[RemovableRun], problems: dict[str, str], *, dry_run: bool, json: bool) -> None:
    removed = [] if dry_run else [each for each in found if each.paths.run_id not in problems]
    freed = sum(each.size_bytes for each in removed)
    if json:
        rows = [{"run_id": each.paths.run_id, "size_bytes": each.size_bytes} for each in found]
        ids = [each.paths.run_id for each in removed]
        print_json({"found": rows, "removed": ids, "freed_bytes": freed, "problems": problems})
        return
    for name, problem in problems.items():
        print_error(f"{name}: {problem}")
    if removed:
        console().print(f"removed {len(removed)} run{'s' * (len(removed) > 1)}, {megabytes(freed)} MB freed")
