"""`polar cancel`: cancels a session, a task or a group at the server; what was captured is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import print_json
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient


def cancel(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a session; of a task or group with --task or --group.")
    ],
    task: Annotated[bool, typer.Option("--task", help="All sessions of a task.")] = False,
    group: Annotated[bool, typer.Option("--group", help="All sessions of a group's tasks.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
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
    """How many had not ended, and when those that run will end."""
    cancel = {"task": client.cancel_task, "group": client.cancel_group, "session": client.cancel_session}[kind]
    count = await cancel(name)
    if kind != "session":
        return count, "; nodes stop running sessions with their next heartbeat" if count else ""
    session = await client.session(name)
    if not count:
        return count, f": it had already ended, {session.stage}"
    if session.stage.final:
        return count, ""
    return count, f": it is in {session.stage} at {session.node_id}, which stops it with its next heartbeat"
