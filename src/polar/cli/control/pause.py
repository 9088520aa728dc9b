"""`polar pause` and `polar resume`: generation at all nodes of a rollout server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import print_error, print_json
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import Drain

EXIT_NOT_DRAINED = 1


def pause(
    server: ServerOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until no generation is under way.")] = False,
    timeout_s: Annotated[float | None, typer.Option("--timeout", min=0, help="Of --wait, in seconds.")] = None,
    json: JsonOption = False,
) -> None:
    """Pause generation: sessions stay, their next model calls wait for `resume`.

    Replies that are under way run to their end; --wait waits for them. Exit code
    1: they did not end within --timeout, and generation stays paused.
    """
    drain = ask(server, lambda client: _paused(client, wait=wait, timeout_s=timeout_s), patient=wait)
    if json:
        print_json(_as_json(drain))
    else:
        typer.echo(f"generation is paused; {_progress(drain)}; `polar resume` lets it go on")
    if wait and not drain.done:
        print_error(f"not drained within {timeout_s:g} s: {_progress(drain)}")
        raise typer.Exit(EXIT_NOT_DRAINED)


def resume(server: ServerOption = None, json: JsonOption = False) -> None:
    """Resume generation: the model calls that waited begin."""
    policy = ask(server, lambda client: client.resume())
    if json:
        print_json({"policy": policy.model_dump(mode="json")})
    else:
        typer.echo(f"generation goes on{f', under policy version {policy.version}' if policy.version else ''}")


async def _paused(client: PolarClient, *, wait: bool, timeout_s: float | None) -> Drain:
    from polar.client import NotDrained

    try:
        await client.pause(wait=wait, timeout_s=timeout_s)
    except NotDrained as error:
        if error.drain is not None and not error.drain.policy.paused:  # another client resumed
            raise
    return await client.drain()


def _progress(drain: Drain) -> str:
    if drain.done:
        return "no generation is under way"
    unheard = f"; not heard of it yet: {', '.join(drain.unheard)}" if drain.unheard else ""
    return f"{drain.generating} generations are under way{unheard}"


def _as_json(drain: Drain) -> dict[str, Any]:
    return {**drain.model_dump(mode="json"), "done": drain.done}
