"""Service tokens as the server lists them, and the record of control actions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polar.types.base import Strict

TokenKind = Literal["control", "node"]
MAX_OVERLAP_S = 90 * 24 * 3600.0


class TokenRotation(Strict):
    """A new service token. Its maker keeps the token itself: the server gets the hash alone."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    overlap_s: float = Field(default=24 * 3600.0, ge=0, le=MAX_OVERLAP_S, allow_inf_nan=False)
    """How long the tokens before it stay valid; 0: they end at once."""


class TokenStatus(Strict):
    kind: TokenKind
    fingerprint: str
    """The beginning of its SHA-256, which names it in the record of actions."""
    made: float
    expires: float | None = None
    """None: until it is rotated."""


class Action(Strict):
    """One control action, or the refusal of one."""

    cursor: int
    at: float
    action: str
    """The group of routes and the route: `tasks.submit`."""
    by: Literal["token", "login", "node token", "server", "unknown"]
    """login: a browser that logged in with the token. unknown: no valid token came."""
    token: str = ""
    """The token's fingerprint."""
    address: str = ""
    """Of the client, or of the proxy in front of the server."""
    outcome: Literal["done", "refused"]
    detail: dict[str, Any] = {}
    """What it concerned, and why it was refused."""


class ActionPage(Strict):
    actions: tuple[Action, ...]
    """The oldest first."""
    cursor: int
    """Of the last one, to continue from."""
