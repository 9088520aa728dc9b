"""`polar nodes`: the nodes of a rollout server, their health and their sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import clock, one_line, print_json, print_table
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.types import NodeStatus

SHOWN_SESSIONS = 4


def nodes(server: ServerOption = None, json: JsonOption = False) -> None:
    """List the gateway nodes of a rollout server: health, sessions, and what each can run.

    A node says at its start, and again when it changes, which runtimes work on
    its machine, which engine and model it has, and the labels that its operator
    gave it ([node] labels). It gets only sessions that it can run; --json has
    its harnesses, images and allowed modules too.
    """
    found = ask(server, lambda client: client.nodes())
    if json:
        rows = [{**node.model_dump(mode="json"), "state": state_of(node)} for node in found]
        print_json({"nodes": rows})
    elif not found:
        typer.echo("no node is registered: start one with `polar gateway --server URL`")
    else:
        columns = ("node", "name", "state", "#seen s ago", "#slots", "sessions", "can", "why")
        print_table(columns, map(_row, found), optional=["#seen s ago", "sessions"])


def state_of(node: NodeStatus) -> str:
    """`silent`: without a heartbeat for so long that its sessions are given to other nodes."""
    if not node.alive:
        return "silent"
    if node.sick:
        return "sick"
    return "draining" if node.draining else "well"


def _row(node: NodeStatus) -> tuple[str, ...]:
    why = f"{node.sick.part}, since {clock(node.sick.since)}: {one_line(node.sick.why, 200)}" if node.sick else ""
    seen_s = max(0.0, time.time() - node.last_seen)
    state = (node.node_id, node.name, state_of(node), f"{seen_s:.0f}", str(node.slots))
    return (*state, _sessions(node), abilities_line(node), why)


def abilities_line(node: NodeStatus) -> str:
    """Runtimes, engine, model and labels."""
    can = node.abilities
    if can is None:
        return "unknown: of an older Polar, gets no sessions"
    labels = f"labels {' '.join(can.labels)}" if can.labels else ""
    model = f"{can.engine} {can.model}".strip()
    return one_line("; ".join(filter(None, (" ".join(can.runtimes) or "no runtime", model, labels))), 200)


def _sessions(node: NodeStatus) -> str:
    more = len(node.sessions) - SHOWN_SESSIONS
    shown = " ".join(node.sessions[:SHOWN_SESSIONS])
    return f"{shown} and {more} more" if more > 0 else shown or "-"
