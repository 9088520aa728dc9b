"""Logging in with a browser: the control token is exchanged for a cookie.

The server keeps no list of logins: a cookie holds its expiry and is signed with a key made from the control token.
So a restart logs no one out, and a new control token logs everyone out. A browser sends cookies also with requests
that other sites cause; a request that changes something must therefore come from a page of this server.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from hashlib import sha256
from urllib.parse import urlsplit

from fastapi import Request

LOGIN_S = 7 * 24 * 3600
"""How long a login lasts."""
PAGE_HEADER = "x-polar-page"
"""No form and no link of another site can send it."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS = ("GET", "HEAD")


class LoginCookies:
    """Makes and checks the values of the cookie."""

    def __init__(self, control_token: str) -> None:
        self._key = hmac.digest(control_token.encode("utf-8", "surrogateescape"), b"polar login cookie", "sha256")

    def make(self, now: float) -> str:
        content = f"{int(now) + LOGIN_S}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._signature(content)}"

    def valid(self, value: str, now: float) -> bool:
        content, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(content).encode()):
            return False
        expires = content.partition(".")[0]
        return expires.isdecimal() and now < int(expires)

    def _signature(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), sha256).hexdigest()


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
