"""HTTP to the rollout server: one request and its answer, sent again while that may help.

Every request of the client may be sent twice without harm: reads and cancellations by nature, a policy because
what is put says how it shall stand, a task because its id is fixed before it is first sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from polar.client.retries import Patience, Retry, ServerError
from polar.config import config_dir, read_secret
from polar.errors import ConfigError, PolarError

CONNECT_TIMEOUT_S = 10.0
JSON = "application/json"
MSGPACK = "application/vnd.msgpack"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those that are None are left out."""
    body: bytes | None = None
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    silence_s: float = 60.0
    """The longest time without a byte from the server; a large answer may take as long as it needs."""


class Transport:
    """One server at its address, and the token that opens it."""

    def __init__(self, url: str, token: str | None, retry: Retry) -> None:
        self.url = _checked(url)
        self.retry = retry
        self._given = token is not None
        self._token = (read_secret("control-token") if token is None else token).strip()
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": JSON},
            # Long polls hold their connections; a limit would let them starve every other request.
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def send(self, request: Request) -> bytes:
        patience = Patience(self.retry)
        while True:
            try:
                async with self._answer(request) as response:
                    return await response.read()
            except ServerError as error:
                await patience.bear(error)

    async def stream(self, request: Request) -> AsyncGenerator[bytes]:
        """The answer as it comes, once; whoever reads it knows where to go on after a failure."""
        async with self._answer(request) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def _answer(self, request: Request) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._http is None:
            raise PolarError("the client is not open; use it as `with SyncPolarClient() as client` or async with")
        try:
            async with self._http.request(
                request.method,
                self.url + request.path,
                params={name: value for name, value in request.params.items() if value is not None},
                data=request.body,
                headers={"Accept": request.accept, **request.headers},
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=request.silence_s
                ),
                allow_redirects=False,  # the token is for this server alone
            ) as response:
                if response.status >= 300:
                    raise self._refusal(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise self.no_answer(str(error) or type(error).__name__) from error

    def no_answer(self, reason: str) -> ServerError:
        return ServerError(f"no answer from the server at {self.url}: {reason}; is it running there?")

    def unreadable(self, path: str, reason: object) -> ServerError:
        return ServerError(f"the server at {self.url} answered {path} in another shape: {reason}", status=200)

    def _refusal(self, status: int, payload: bytes) -> ServerError:
        detail = _detail(payload)
        did = "failed" if status >= 500 else "refuses"
        message = f"the server at {self.url} {did} ({status}): {detail}"
        if status == 401:
            message += f"; the client used {self._whence()}"
        return ServerError(message, status=status, detail=detail)

    def _whence(self) -> str:
        if self._given:
            return "the token it was given"
        return f"POLAR_CONTROL_TOKEN, or where that is not set {config_dir() / 'control-token'}"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8700")
    return url.rstrip("/")


def _detail(payload: bytes) -> str:
    try:
        detail = orjson.loads(payload)["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return payload[:200].decode(errors="replace").strip() or "no reason given"
    return detail if isinstance(detail, str) else orjson.dumps(detail).decode()
