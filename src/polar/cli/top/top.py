"""The command `polar top`. Only it imports Textual, and only where there is a terminal to draw in."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import print_json
from polar.cli.service.remote import ask


def top(
    server: ServerOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot as plain text.")] = False,
    json: JsonOption = False,
) -> None:
    """Watch a rollout service: queue, nodes, speed, outcomes, failures, log.

    Keys: q quits; p pauses or resumes generation; d drains the chosen node;
    c cancels the chosen session; Enter shows a whole row; ? lists all keys.
    Where there is no terminal it prints one snapshot, as --once does.
    """
    if json:
        print_json(ask(server, lambda client: client.overview()).model_dump(mode="json"))
    elif once or not _has_terminal():
        from polar.cli.top.feed import look
        from polar.cli.top.snapshot import print_snapshot

        print_snapshot(ask(server, look))
    else:
        ask(server, lambda client: client.policy())  # a server that never was there is refused, not waited for
        from polar.cli.top.app import run_top

        run_top(server)


def _has_terminal() -> bool:
    """Textual reads stdin and draws on stderr."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"
