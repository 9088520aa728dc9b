"""`polar drain`: a node gets no more sessions, so that it can be stopped when the last one has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import print_json
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import NodeStatus

LOOK_EVERY_S = 0.5


def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's id or name, or the beginning of it.")],
    server: ServerOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until the node has no session.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let the node have sessions again.")] = False,
    json: JsonOption = False,
) -> None:
    """Give a node no more sessions; those that it has end as usual.

    `polar nodes` lists the nodes. A node that is started again gets sessions.
    """
    if wait and undo:
        raise typer.BadParameter("--wait waits for the end of a drain, which --undo ends", param_hint="--wait")
    found = ask(server, lambda client: _drain(client, node, wait=wait, undo=undo), patient=wait)
    if json:
        print_json({"node_id": found.node_id, "draining": not undo, "sessions": list(found.sessions)})
    elif undo:
        typer.echo(f"{found.node_id} ({found.name}) gets sessions again")
    else:
        left = " ".join(found.sessions)
        todo = f"{len(found.sessions)} to end: {left}" if left else "it has none left"
        typer.echo(f"{found.node_id} ({found.name}) gets no more sessions; {todo}")


async def _drain(client: PolarClient, name: str, *, wait: bool, undo: bool) -> NodeStatus:
    node = _named(await client.nodes(), name)
    await client.drain_node(node.node_id, draining=not undo)
    while wait and node.sessions:
        await asyncio.sleep(LOOK_EVERY_S)
        still = [each for each in await client.nodes() if each.node_id == node.node_id]
        node = still[0] if still else node.model_copy(update={"sessions": ()})  # it was stopped meanwhile
    return node


def _named(nodes: list[NodeStatus], name: str) -> NodeStatus:
    from polar.errors import PolarError

    if not nodes:
        raise PolarError("no node is registered: start one with `polar gateway --server URL`")
    exact = [node for node in nodes if name in (node.node_id, node.name)]
    found = exact or [node for node in nodes if node.node_id.startswith(name) or node.name.startswith(name)]
    if len(found) != 1:
        problem = f"{len(found)} nodes begin with {name!r}" if found else f"there is no node {name!r}"
        known = ", ".join(f"{node.node_id} ({node.name})" for node in found or nodes)
        raise PolarError(f"{problem}; known: {known}")
    return found[0]
