"""`polar actions`: the record of control actions of a rollout server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import ServerOption
from polar.cli.output import clock, one_line
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.types import Action


def actions(
    server: ServerOption = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Show so many.")] = 100,
    after: Annotated[int | None, typer.Option(min=0, help="Only after this entry's number.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Show who did what at a rollout server: the newest control actions, and what was refused.

    An entry names the token by its fingerprint (`polar token ls`) and the
    client's address. `login`: a browser that logged in with that token.

        polar actions --refused
        polar actions --after 1200 --count 1000 --json
    """
    page = ask(server, lambda client: client.actions(after=after, limit=count))
    for action in page.actions:
        if not refused or action.outcome == "refused":
            typer.echo(action.model_dump_json() if json else line_of(action))


def line_of(action: Action) -> str:
    who = " ".join(filter(None, (action.by, action.token, action.address)))
    detail = " ".join(f"{name}={value}" for name, value in action.detail.items())
    about = f"{one_line(who)}  {one_line(detail, 300)}".rstrip()
    return f"{action.cursor:>6}  {clock(action.at)}  {action.action:<22} {action.outcome:<8} {about}"
