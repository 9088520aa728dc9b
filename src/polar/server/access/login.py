"""Logging in with a browser: the control token is exchanged for a cookie.

A cookie is a random value; the database has its hash and the token it was given for. So a restart logs no one
out, all servers of a database know it, and it ends with its token. A browser sends cookies also with requests
that other sites cause; a request that changes something must therefore come from a page of this server.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request
from sqlalchemy import Connection, delete, insert, or_, select

from polar.server.access.tables import logins
from polar.server.records.nodes import sha256
from polar.server.state import Change

LOGIN_S = 7 * 24 * 3600
"""How long a login lasts."""
PAGE_HEADER = "x-polar-page"
"""No form and no link of another site can send it."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS = ("GET", "HEAD")


@dataclass(frozen=True)
class Login:
    token: str
    """The hash of the token with which the browser logged in."""
    expires: float


def begin(change: Change, token: str) -> str:
    """The value of a new cookie. Logins that have ended are forgotten."""
    value = secrets.token_urlsafe(32)
    change.connection.execute(delete(logins).where(logins.c.expires <= change.now))
    row = {"sha256": sha256(value), "token": token, "expires": change.now + LOGIN_S}
    change.connection.execute(insert(logins).values(**row))
    return value


def find(connection: Connection, value: str) -> Login | None:
    row = connection.execute(select(logins).where(logins.c.sha256 == sha256(value))).one_or_none()
    return None if row is None else Login(row.token, row.expires)


def end(change: Change, value: str) -> None:
    over = or_(logins.c.sha256 == sha256(value), logins.c.expires <= change.now)
    change.connection.execute(delete(logins).where(over))


def cookie_name(request: Request) -> str:
    """With the port: browsers send a cookie to every port of a host, and another server may have another token."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"polar_login_{port if port.isascii() and port.isdigit() else 0}"


def by_https(request: Request) -> bool:
    """Also behind a proxy that speaks https for this server: the browser's `Origin` tells what it used."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def from_own_page(request: Request) -> bool:
    """Whether a page of this server caused it. Browsers set both headers, and scripts cannot change them."""
    origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "same-origin")
    same = urlsplit(origin).netloc == request.headers.get("host", "-") and site == "same-origin"
    return same and request.headers.get(PAGE_HEADER) == "1"


def known_host(request: Request, names: Collection[str]) -> bool:
    """Whether the browser used one of the names; none given: any name. A page of another site whose name leads to
    this machine sends that name."""
    host = request.headers.get("host", "")
    return not names or host in names or host.rpartition(":")[0] in names
