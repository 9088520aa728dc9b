"""`polar cancel`: a session, a task or a group is broken off at the server; what was captured is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.output import print_json
from polar.cli.service.remote import ServerOption, ask

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
    count, status = ask(server, lambda client: _cancelled(client, kind, name))
    if json:
        print_json({kind: name, "cancelled": count})
    else:
        typer.echo(f"{kind} {name}: {count or 'no'} {'session' if count == 1 else 'sessions'} cancelled{status}")


async def _cancelled(client: PolarClient, kind: str, name: str) -> tuple[int, str]:
    """How many had not ended, and what is still to come."""
    count = await _cancel(client, kind, name)
    if kind != "session":
        told = "; those that run are broken off with the next heartbeat of their nodes" if count else ""
        return count, told
    session = await client.session(name)
    if not count:
        return count, f": it had ended before, {session.stage}"
    if session.stage.final:
        return count, ""
    return count, f": it is in {session.stage} at {session.node_id}, which breaks it off with its next heartbeat"


async def _cancel(client: PolarClient, kind: str, name: str) -> int:
    match kind:
        case "task":
            return await client.cancel_task(name)
        case "group":
            return await client.cancel_group(name)
        case _:
            return await client.cancel_session(name)
