"""`polar top --once`: the same values as plain text, for scripts and `watch`."""

from __future__ import annotations

import typer

from polar.cli.output import clock, console, one_line, print_table
from polar.cli.top.feed import Snapshot
from polar.cli.top.fitting import folded
from polar.cli.top.sections import Section, head_lines, sections

ROWS = {"nodes": 20, "sessions": 20, "outcomes": 20, "failures": 10, "log": 10}
"""Of each section."""


def print_snapshot(snapshot: Snapshot) -> None:
    overview = snapshot.overview
    typer.echo(f"polar {one_line(overview.version, 40)} at {clock(overview.at)}")
    for line in head_lines(overview):
        for part in folded(line, console().width):
            typer.echo(part)
    for section in sections(snapshot):
        typer.echo(f"\n{section.title}")
        if section.rows:
            _print_rows(section)
        else:
            typer.echo(section.empty)


def _print_rows(section: Section) -> None:
    shown = section.rows[: ROWS[section.name]]
    print_table(section.columns, [row.cells for row in shown], optional=section.optional)
    if more := len(section.rows) - len(shown):
        typer.echo(f"(and {more} more)")
