"""HTTP requests to the rollout server, with retries.

Every request of the client may be repeated: reads, cancellations and policy changes are idempotent, and a task's
id is fixed before it is first sent.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from polar.client.retries import Retrier, Retry, ServerError
from polar.errors import ConfigError, PolarError
from polar.tls import CertificateUnusable, advice, cause_of, client_context
from polar.token_files import config_dir, read_secret

CONNECT_TIMEOUT_S = 10.0
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """None: left out."""
    body: bytes | None = None
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    silence_s: float = 60.0
    """The longest time without a byte from the server; a large answer may take longer."""


class Transport:
    """The connection to one server."""

    def __init__(self, url: str, token: str | None, retry: Retry, ca_file: str = "") -> None:
        self.url = _checked(url)
        self._ca_file = ca_file
        self.retry = retry
        self._given = token is not None
        self._token = (read_secret("control-token") if token is None else token).strip()
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(
            headers={"Content-Type": JSON},
            # No limit: long polls hold their connections and would block every other request.
            connector=aiohttp.TCPConnector(limit=0, ssl=self._trusted()),
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https://"):
            return True
        try:
            return client_context(self._ca_file)
        except CertificateUnusable as error:
            raise ConfigError(str(error)) from error

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def send(self, request: Request) -> bytes:
        retrier = Retrier(self.retry)
        while True:
            token = self._token
            try:
                async with self._answer(request) as response:
                    return await response.read()
            except ServerError as error:
                if self._token == token:
                    await retrier.wait(error)

    async def stream(self, request: Request) -> AsyncGenerator[bytes]:
        """The answer in chunks, without retries: the caller knows where to resume."""
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
                headers={"Authorization": f"Bearer {self._token}", "Accept": request.accept, **request.headers},
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=request.silence_s
                ),
                allow_redirects=False,  # the token is for this server alone
            ) as response:
                if response.status == 401:
                    self._read_token_again()
                if response.status >= 300:
                    raise self._refusal(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise self.no_answer(advice(error, self.url) or _why(error), unreachable=_is_final(error)) from error

    def _read_token_again(self) -> None:
        """It may have been rotated since this client was made."""
        if not self._given:
            with suppress(ConfigError):
                self._token = read_secret("control-token").strip()

    def no_answer(self, reason: str, *, unreachable: bool = False) -> ServerError:
        message = f"no answer from the server at {self.url}: {reason}; is it running there?"
        return ServerError(message, unreachable=unreachable)

    def unreadable(self, path: str, reason: object) -> ServerError:
        return ServerError(f"the server at {self.url} gave an unexpected answer to {path}: {reason}", status=200)

    def _refusal(self, status: int, payload: bytes) -> ServerError:
        detail = detail_of(payload)
        did = "failed" if status >= 500 else "refuses"
        message = f"the server at {self.url} {did} ({status}): {detail}"
        if status == 401:
            message += f"; the client used {self._token_source()}: it must be the control token of that server"
        return ServerError(message, status=status, detail=detail)

    def _token_source(self) -> str:
        if self._given:
            return "the token passed to it"
        return f"POLAR_CONTROL_TOKEN or, if that is not set, {config_dir() / 'control-token'}"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not a server address; write one like http://127.0.0.1:8700")
    return url.rstrip("/")


def _why(error: aiohttp.ClientError | OSError) -> str:
    """The system's word for it: aiohttp adds its own terms."""
    refused = isinstance(cause_of(error), ConnectionRefusedError)
    return "connection refused" if refused else str(error) or type(error).__name__


def _is_final(error: aiohttp.ClientError | OSError) -> bool:
    """The next try would end the same way."""
    return isinstance(cause_of(error), ConnectionRefusedError | ssl.SSLError | socket.gaierror)


def detail_of(payload: bytes) -> str:
    """The message in the body of an error."""
    try:
        detail = orjson.loads(payload)["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return payload[:200].decode(errors="replace").strip() or "no reason given"
    return detail if isinstance(detail, str) else orjson.dumps(detail).decode()
