"""Nodes and server must speak the same version of their protocol: another one is refused, with what to upgrade."""

from __future__ import annotations

from typing import Any, cast

from fastapi import Request

from polar import __version__
from polar.server.errors import UpgradeRequired
from polar.types import PROTOCOL, NodeAbilities

BEFORE_ABILITIES = 1
"""Of nodes that do not say which."""
SHOWN = 40


def of_our_protocol(abilities: NodeAbilities | None) -> NodeAbilities:
    """None: those of a node from before there were any."""
    if abilities is None or abilities.protocol != PROTOCOL:
        raise _refusal(*((BEFORE_ABILITIES, "") if abilities is None else (abilities.protocol, abilities.polar)))
    return abilities


async def same_protocol(request: Request) -> None:
    """Before the registration is checked field by field: another Polar may have other fields."""
    try:
        sent: Any = await request.json()
    except ValueError:  # the registration's own checks say so
        return
    given: Any = cast("dict[str, Any]", sent).get("abilities") if isinstance(sent, dict) else None
    abilities = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    protocol = abilities.get("protocol", BEFORE_ABILITIES)
    if isinstance(protocol, int) and protocol > 0 and protocol != PROTOCOL:
        raise _refusal(protocol, str(abilities.get("polar", "")))


def _refusal(protocol: int, polar: str) -> UpgradeRequired:
    older, newer = ("node", "server") if protocol < PROTOCOL else ("server", "node")
    named = f"Polar {polar[:SHOWN]}" if polar else "an older Polar"
    return UpgradeRequired(
        f"this node is {named} with protocol {str(protocol)[:SHOWN]}, the server is Polar {__version__} with "
        f"protocol {PROTOCOL}: upgrade the {older} to the {newer}'s version"
    )
