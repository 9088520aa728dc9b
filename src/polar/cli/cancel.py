"""`polar cancel`: a session, a task or a group is broken off at the server; what was captured is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.output import print_json
from polar.cli.remote import ServerOption, ask

if TYPE_CHECKING:
    from polar.client import PolarClient


def cancel(
    name: Annotated[str, typer.Argument(metavar="ID", help="The id of a session, or of what the options say.")],
    task: Annotated[bool, typer.Option("--task", help="All sessions of a task.")] = False,
    group: Annotated[bool, typer.Option("--group", help="All sessions of a group's tasks.")] = False,
    server: ServerOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cancel a session at a rollout server, or all sessions of a task or a group."""
    if task and group:
        raise typer.BadParameter("an id is that of a task or of a group, not both", param_hint="--task, --group")
    kind = "task" if task else "group" if group else "session"
    count = ask(server, lambda client: _cancel(client, kind, name))
    if json:
        print_json({kind: name, "cancelled": count})
    else:
        typer.echo(f"{kind} {name}: {count or 'no'} {'session' if count == 1 else 'sessions'} cancelled")


async def _cancel(client: PolarClient, kind: str, name: str) -> int:
    match kind:
        case "task":
            return await client.cancel_task(name)
        case "group":
            return await client.cancel_group(name)
        case _:
            return await client.cancel_session(name)
