"""Who may read the pages of `polar view`: the browser that first opened an address that the command printed.

The address carries a code that is good once and for a few minutes. The browser gets a cookie for it and is sent on
to the address without the code, so nothing that lasts stands in an address, a history or a log.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

CODE = "code"
"""The parameter of the address."""
CODE_S = 600.0
"""How long an unused code is good."""
HOW = (
    "This address is not open to this browser. Press Enter in the terminal where `polar view` runs: it prints a "
    "new address, which is good once. Without a terminal, start `polar view` again."
)


class OneTimeCodes:
    """Codes that were given out, and the browsers that have exchanged one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[bytes, float] = {}
        """When each code ends, by its digest: looking one up takes no time that depends on its characters."""
        self._keys: set[bytes] = set()

    def address(self, page: str) -> str:
        """The address of a page with a new code; the codes before it stay good."""
        code = secrets.token_urlsafe(24)
        self._ends[_digest(code)] = self._clock() + CODE_S
        return f"{page}{'&' if '?' in page else '?'}{CODE}={code}"

    def exchanged(self, code: str) -> str | None:
        """The key of a browser's cookie; None: the code is unknown, used or too old."""
        end = self._ends.pop(_digest(code), None)
        if end is None or end < self._clock():
            return None
        key = secrets.token_urlsafe(32)
        self._keys.add(_digest(key))
        return key

    def opens(self, key: str) -> bool:
        return _digest(key) in self._keys


class CodesRequired:
    """In front of a site: lets a browser with a cookie through, and exchanges codes for cookies."""

    def __init__(self, app: ASGIApp, codes: OneTimeCodes) -> None:
        self._app = app
        self._codes = codes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._answer(request)
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """None: the request may pass."""
        # A browser sends a cookie to every port of a machine, so each has a name of its own.
        name = f"polar_view_{request.url.port or 80}"
        is_open = self._codes.opens(request.cookies.get(name, ""))
        code = request.query_params.get(CODE)
        if code is None or request.method != "GET":
            return None if is_open else _closed()
        key = None if is_open else self._codes.exchanged(code)
        if key is None and not is_open:
            return _closed()
        answer = RedirectResponse(_without_code(request), status_code=303, headers={"cache-control": "no-store"})
        if key is not None:
            answer.set_cookie(name, key, httponly=True, samesite="strict", path="/")
        return answer


def _without_code(request: Request) -> str:
    rest = [(name, value) for name, value in parse_qsl(request.url.query, keep_blank_values=True) if name != CODE]
    # One slash: an address that begins with two would name another host.
    path = "/" + request.url.path.lstrip("/")
    return path + (f"?{urlencode(rest)}" if rest else "")


def _closed() -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return PlainTextResponse(HOW, status_code=403, headers=headers)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
