"""`polar token`: the tokens of a rollout server, and new ones in their place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polar.cli.options import JsonOption, ServerOption, age_s
from polar.cli.output import clock, print_json, print_table
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.types import TokenStatus

token = typer.Typer(no_args_is_help=True, help="List and rotate the tokens of a rollout server.")


@token.command("ls")
def ls(server: ServerOption = None, json: JsonOption = False) -> None:
    """List the tokens by fingerprint: the beginning of their SHA-256, as in `polar actions`."""
    found = ask(server, lambda client: client.tokens())
    if json:
        print_json({"tokens": [one.model_dump(mode="json") for one in found]})
    else:
        print_table(("kind", "token", "made", "valid"), map(row_of, found))


@token.command("rotate")
def rotate(
    kind: Annotated[str, typer.Argument(help="control or node.", metavar="KIND")],
    overlap: Annotated[str, typer.Option(metavar="AGE", help="How long the old one stays valid.")] = "24h",
    now: Annotated[bool, typer.Option("--now", help="The old one ends at once.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Make a new token, valid at once, and let the old one end after an overlap.

    The new token is written to this user's config folder, where only you can
    read it; the server gets its hash. Copy the file to the other machines that
    need it within the overlap. Programs that read the file notice the new one;
    those that got the token by POLAR_CONTROL_TOKEN or POLAR_NODE_TOKEN have to
    be restarted with it. Browsers log in again when the old token ends.

        polar token rotate control --overlap 12h
        polar token rotate node --now
    """
    from polar.token_files import next_secret, use_next_secret
    from polar.types import TokenRotation

    if kind not in ("control", "node"):
        raise typer.BadParameter(f"{kind!r}: a token is of the kind control or node", param_hint="KIND")
    name: Literal["control-token", "node-token"] = "control-token" if kind == "control" else "node-token"
    overlap_s = 0.0 if now else age_s(overlap, "--overlap")
    rotation = TokenRotation(sha256=next_secret(name), overlap_s=overlap_s)
    status = ask(server, lambda client: client.rotate_token(kind, rotation))
    path, variable = use_next_secret(name)
    if json:
        print_json({"token": status.model_dump(mode="json"), "file": str(path), "overlap_s": overlap_s})
        return
    ends = f"the old one ends {clock(time.time() + overlap_s)}" if overlap_s else "the old one has ended"
    typer.echo(f"the new {kind} token {status.fingerprint} is in {path}; {ends}")
    if variable:
        typer.echo(f"{variable} is set here and still holds the old one: set it to the content of that file")


def row_of(one: TokenStatus) -> tuple[str, ...]:
    if one.expires is None:
        valid = "yes"
    else:
        valid = f"until {clock(one.expires)}" if one.expires > time.time() else f"ended {clock(one.expires)}"
    return (one.kind, one.fingerprint, clock(one.made), valid)
