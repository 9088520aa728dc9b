"""`polar events`: what changes at a rollout server, as it happens."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polar.cli.options import ServerOption, age_s
from polar.cli.output import clock, one_line
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import Event

Kind = Literal["task", "stage", "result", "node", "policy"]


def events(  # noqa: PLR0913 - each is an option of the command
    server: ServerOption = None,
    task: Annotated[list[str] | None, typer.Option(help="Only of this task. May be repeated.")] = None,
    group: Annotated[str | None, typer.Option(help="Only of the tasks that this group has now.")] = None,
    session: Annotated[list[str] | None, typer.Option(help="Only of this session.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only of this node.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="task, stage, result, node or policy.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only newer ones, as 10m; 0m: from now on.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only after this event's number.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Follow the events of a rollout server, from its first one on.

    Several filters must all hold. Ctrl-C ends it, with exit code 130.

        polar events --kind result --since 0m
        polar events --group sums --json
    """
    oldest = None if since is None else time.time() - age_s(since, "--since")
    chosen = EventFilter(_kinds(kind or []), set(task or []), set(session or []), set(node or []), oldest)
    ask(server, lambda client: _follow(client, chosen, group, after, count, json=json), patient=True)


@dataclass
class EventFilter:
    """Which events are shown. An empty set: all."""

    kinds: set[str]
    tasks: set[str]
    sessions: set[str]
    nodes: set[str]
    oldest: float | None = None
    """In Unix seconds."""

    def shows(self, event: Event) -> bool:
        pairs = (
            (self.kinds, event.kind),
            (self.tasks, event.task_id),
            (self.sessions, event.session_id),
            (self.nodes, event.node_id),
        )
        return all(not wanted or value in wanted for wanted, value in pairs) and event.at >= (self.oldest or 0.0)


async def _follow(
    client: PolarClient, chosen: EventFilter, group: str | None, after: int, count: int | None, *, json: bool
) -> None:
    if group is not None:
        chosen.tasks |= set((await client.group(group)).task_ids)
    shown = 0
    async with aclosing(client.events(after)) as found:
        async for event in found:
            if chosen.shows(event):
                typer.echo(event.model_dump_json() if json else line_of(event))
                shown += 1
            if shown == count:
                return


def line_of(event: Event) -> str:
    about = " ".join(filter(None, (event.session_id or event.task_id, event.node_id)))
    data = " ".join(f"{name}={value}" for name, value in event.data.items() if value not in (None, ""))
    return f"{event.cursor:>6}  {clock(event.at)}  {event.kind:<6}  {one_line(f'{about}  {data}', 300)}"


def _kinds(given: list[str]) -> set[str]:
    from typing import get_args

    if wrong := set(given) - set(get_args(Kind)):
        known = ", ".join(get_args(Kind))
        raise typer.BadParameter(f"{', '.join(sorted(wrong))}: an event is of one of {known}", param_hint="--kind")
    return set(given)
