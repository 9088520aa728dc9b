"""Service tokens: which are valid, and how one takes the place of another.

The database holds the hashes, so all servers that share it agree. Each looks again every second: a token that ends
at one server ends at the others a second later.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, or_, select, update

from polar.server.access.actions import ActionUnderWay, Actor, append
from polar.server.access.tables import tokens
from polar.server.errors import Conflict
from polar.server.records.nodes import sha256
from polar.server.state import Change, State
from polar.types import TokenKind, TokenRotation, TokenStatus

log = logging.getLogger("polar.server")
LOOK_S = 1.0
LOOK_AFTER_MISS_S = 0.05
"""An unknown token may be one that another server has just learned of. The database is asked about unknown ones no
more often than this."""
SHOWN = 12


@dataclass(frozen=True)
class ServiceTokens:
    """Those that the server was started with."""

    control: str = field(repr=False)
    node: str = field(repr=False)
    metrics: str = field(default="", repr=False)
    """For those who only read metrics. Empty: there is none, and they use the control token."""

    def __post_init__(self) -> None:
        given = [self.control, self.node, *([self.metrics] if self.metrics else [])]
        if not all(given) or len({*given}) < len(given):
            raise ValueError("the control token and the node token must be set, and all tokens must differ")


def fingerprint(sha256: str) -> str:
    return sha256[:SHOWN]


def listing(connection: Connection) -> list[TokenStatus]:
    """Also those that have ended, the oldest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.made, tokens.c.sha256))
    return [
        TokenStatus(kind=row.kind, fingerprint=fingerprint(row.sha256), made=row.made, expires=row.expires)
        for row in rows
    ]


def rotate(change: Change, kind: TokenKind, wanted: TokenRotation) -> TokenStatus:
    """The new token is valid from now on; the others of its kind end after the overlap. A repeated request changes
    nothing."""
    known = change.connection.execute(select(tokens).where(tokens.c.sha256 == wanted.sha256)).one_or_none()
    if known is not None and (known.kind != kind or known.expires is not None):
        raise Conflict("this token was used before; make a new one")
    if known is None:
        _end_others(change, kind, change.now + wanted.overlap_s)
        change.connection.execute(insert(tokens).values(sha256=wanted.sha256, kind=kind, made=change.now))
    change.detail |= {"token": fingerprint(wanted.sha256), "overlap_s": wanted.overlap_s}
    made = change.now if known is None else known.made
    return TokenStatus(kind=kind, fingerprint=fingerprint(wanted.sha256), made=made)


def adopt(change: Change, configured: ServiceTokens) -> None:
    """At the start of a server. A token that the database does not know takes the place of the others at once, as
    the operator has replaced the file or the variable; one that was rotated out stays out."""
    given: dict[TokenKind, str] = {"control": configured.control, "node": configured.node}
    for kind, secret in given.items():
        own = sha256(secret)
        known = change.connection.execute(select(tokens).where(tokens.c.sha256 == own)).one_or_none()
        if known is None:
            if ended := _end_others(change, kind, change.now):
                log.warning("the %s token was replaced: %d before it end now", kind, ended)
                what = ActionUnderWay(Actor("server"), "tokens.replace")
                told = what.about(kind=kind, token=fingerprint(own))
                append(change.connection, change.now, change.config.actions_kept, told)
            change.connection.execute(insert(tokens).values(sha256=own, kind=kind, made=change.now))
        elif known.expires is not None:
            log.warning(
                "the %s token that this server was started with was rotated out; put the new one in its place: "
                "POLAR_%s_TOKEN, or the file %s-token",
                kind,
                kind.upper(),
                kind,
            )


def _end_others(change: Change, kind: TokenKind, end: float) -> int:
    """How many were valid for longer."""
    longer = or_(tokens.c.expires.is_(None), tokens.c.expires > end)
    ended = update(tokens).where(tokens.c.kind == kind, longer).values(expires=end)
    return change.connection.execute(ended).rowcount


def live_tokens(connection: Connection) -> dict[str, tuple[str, float | None]]:
    """Kind and end of each token, by its hash."""
    return {row.sha256: (row.kind, row.expires) for row in connection.execute(select(tokens))}


class TokenTable:
    """The valid tokens, read from the database again and again."""

    def __init__(self, state: State, configured: ServiceTokens) -> None:
        self._state = state
        self._configured: ServiceTokens | None = configured
        """None: the database has them."""
        self._known: dict[str, tuple[str, float | None]] = {}
        self._looked = float("-inf")
        self._turn = asyncio.Lock()

    async def check(self, kind: TokenKind, secret: str) -> str | None:
        """The hash of a valid token; None: it is none."""
        given, asked = sha256(secret), time.monotonic()
        await self.keep_fresh()
        if not self.is_live(kind, given):
            await asyncio.sleep(self._looked + LOOK_AFTER_MISS_S - asked)
            await self.refresh(asked)
        return given if self.is_live(kind, given) else None

    def is_live(self, kind: TokenKind, given: str) -> bool:
        now = self._state.clock()
        return any(
            hmac.compare_digest(given, known) and of == kind and (expires is None or now < expires)
            for known, (of, expires) in self._known.items()
        )

    async def keep_fresh(self) -> None:
        await self.refresh(time.monotonic() - LOOK_S)

    async def refresh(self, since: float = float("inf")) -> None:
        """Unless the last look began after `since`."""
        async with self._turn:
            if self._looked > since:
                return
            began = time.monotonic()
            if self._configured is not None:
                await self._state.change(adopt, self._configured)
                self._configured = None
            self._known = await self._state.read(live_tokens)
            self._looked = began
