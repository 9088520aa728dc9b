"""`polar show`: one session as its walk, its conversation, one call or its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption, RunOption, ServerOption, SessionArgument
from polar.cli.output import print_json
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.cli.show.shown_session import ShownSession


def show(  # noqa: PLR0913
    ctx: typer.Context,
    session: SessionArgument,
    run: RunOption = None,
    server: ServerOption = None,
    messages: Annotated[bool, typer.Option("--messages", help="Show the conversation instead.")] = False,
    call: Annotated[
        str | None, typer.Option(metavar="N", help="Show one call instead: what was new in it, and its reply.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="With --messages or --call: fold no long text.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the tokens, trainable ones marked.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one session: its stages and calls over time, its score and its traces.

    Looks in the local runs; with --server at a rollout server, which needs the
    whole id.

        polar show word-0 --messages       # what was said, per chain of calls
        polar show word-0 --call 2 --tokens
    """
    from polar.cli.show.conversation import print_conversation
    from polar.cli.show.one_call import print_call
    from polar.cli.show.session_json import call_json, session_json
    from polar.cli.show.session_page import print_page
    from polar.cli.show.shown_session import chosen_call
    from polar.cli.show.tokens import print_traces

    shown = load(ctx, session, run, server)
    one = None if call is None else chosen_call(shown, call)
    if json:
        print_json(session_json(shown, with_tokens=tokens) if one is None else call_json(one, with_tokens=tokens))
    elif one is not None:
        print_call(shown, one, full=full, with_tokens=tokens)
    else:
        print_conversation(shown, full=full) if messages else print_page(shown)
        if tokens:
            print_traces(shown.renderer, shown.traces)


def load(ctx: typer.Context, session: str, run: str | None, server: str | None) -> ShownSession:
    """A run is always local, even if POLAR_SERVER is set."""
    from polar.cli.service.remote_sessions import load_from_server
    from polar.runs.stored import load_session, runs_dir_of

    if server is not None and run is None:
        return ask(server, lambda client: load_from_server(client, session))
    return load_session(runs_dir_of(ctx.obj), run, session)
