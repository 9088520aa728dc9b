"""HTTP/1.1 to one inference server: kept connections, and replies read in batches.

A streamed reply is hundreds of small events. A connection collects their bytes without waking its reader, which
takes everything that has arrived in one step. Bytes that arrived before a connection broke are returned before
the error is raised, so no sampled token is lost. A general HTTP client does neither.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from polar.errors import ConfigError

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 4.0
"""How long an unused connection is kept. Common servers close them after 5 s."""
EAGER_REPLIES = 8
"""With more concurrent replies, a paced reader leaves the bytes in the socket between reads: waking up for each
event would cost more than the rest of a call. The end of a reply is then seen up to one pace later."""
MAX_UNREAD_BYTES = 4 * 2**20
"""Beyond this, reading from the socket is paused until the reply is read."""


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class HttpConnection(asyncio.Protocol):
    """One TCP connection, with one request at a time. The HTTP parser calls its `on_…` methods."""

    def __init__(self, silence_s: float, is_crowded: Callable[[], bool]) -> None:
        self._silence_s = silence_s
        self._is_crowded = is_crowded
        self._loop = asyncio.get_running_loop()
        self.status = 0
        self.headers: dict[str, str] = {}
        """Of the reply; names are lower case."""
        self.touched = False
        """Whether a byte of the reply has arrived."""
        self.complete = True
        """Whether no reply is pending."""
        self.idle_since = 0.0
        self._has_head = False
        self._keeps_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._error: Exception | None = None
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._heard_at = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wakes_on_data = True
        self._read_at = -math.inf

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._keeps_alive and self._error is None

    def send(self, head: bytes, body: bytes) -> None:
        self.status, self.headers = 0, {}
        self.touched = self.complete = self._has_head = self._keeps_alive = False
        self._parts, self._unread_bytes = [], 0
        self._read_at = -math.inf
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines([head, body])
        self._heard_at = self._loop.time()
        self._silence = self._loop.call_later(self._silence_s, self._check_silence)

    async def head(self) -> None:
        """Waits for status and headers."""
        while not self._has_head:
            self._raise_if_broken()
            await self._wait()

    async def arrived(self, pace_s: float = 0.0) -> bytes:
        """All bytes of the body that have arrived; empty at its end. Waits for the first byte, and until
        `pace_s` after the last read, but not beyond the end of the reply."""
        left_s = self._read_at + pace_s - self._loop.time() if pace_s else 0.0
        if left_s > 0:
            await self._pace(left_s)
        while not self._parts and not self.complete:
            self._raise_if_broken()
            await self._wait()
        parts, self._parts = self._parts, []
        self._read_at = self._loop.time()
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._transport.resume_reading()
        self._unread_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def ended(self, limit_s: float) -> None:
        """Waits for the end of the reply, at most `limit_s`."""
        if not self.complete and self._error is None:
            await self._wait(limit_s)

    async def _pace(self, limit_s: float) -> None:
        if not self._is_crowded() or self.complete or self._error is not None:
            return await self.ended(limit_s)
        self._transport.pause_reading()
        try:
            await self._wait(limit_s)
        finally:
            if not self._transport.is_closing():
                self._transport.resume_reading()

    async def whole(self) -> bytes:
        """The rest of the body."""
        parts: list[bytes] = []
        while data := await self.arrived():
            parts.append(data)
        return b"".join(parts)

    def abort(self) -> None:
        self._stop_silence()
        self._transport.abort()

    async def _wait(self, limit_s: float | None = None) -> None:
        """Waits for any change; with a limit, only for the end of the reply or of the limit."""
        waiter = self._waiter = self._loop.create_future()
        self._wakes_on_data = limit_s is None
        timer = None if limit_s is None else self._loop.call_later(limit_s, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_silence(self) -> None:
        left_s = self._heard_at + self._silence_s - self._loop.time()
        if left_s > 0:
            self._silence = self._loop.call_later(left_s, self._check_silence)
        else:
            self._break(TimeoutError(f"the server sent nothing for {self._silence_s:g} s"))
            self._transport.abort()

    def _stop_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _break(self, error: Exception) -> None:
        self._stop_silence()
        if self._error is None:
            self._error = error
        self._wake()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_at, self.touched = self._loop.time(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(ConnectionError(f"the server sent something that is not HTTP: {error}"))
            self._transport.abort()
            return
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        if self.complete:
            self._stop_silence()
        if self.complete or self._wakes_on_data:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and not self.complete and self._ends_with_connection:
            self.complete = True
        self._break(exc or ConnectionResetError("the server closed the connection"))

    @property
    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # Called by the parser. A second reply in the same bytes does not belong to this request, and is dropped.

    def on_message_begin(self) -> None:
        if self.complete:
            self._break(ConnectionError("the server sent a second reply to one request"))
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.status = self._parser.get_status_code()
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._parts.append(body)
            self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = True
            self._keeps_alive = self._parser.should_keep_alive()


class HttpClient:
    """Requests to one server, without a limit on concurrent ones."""

    def __init__(self, url: str, headers: Mapping[str, str], silence_s: float) -> None:
        """`url`: the server's root. `silence_s`: how long the server may send nothing before a request fails."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc, **headers}
        self._silence_s = silence_s
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._closed = False

    @asynccontextmanager
    async def request(self, request: HttpRequest) -> AsyncGenerator[HttpConnection]:
        """Sends the request and waits for the head of its reply. Leaving before the reply is complete closes the
        connection, and the server stops sampling. Raises `OSError`, which includes `TimeoutError`."""
        connection = await self._sent(request)
        try:
            yield connection
        finally:
            self._busy.discard(connection)
            if connection.usable and not self._closed:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.abort()

    async def close(self) -> None:
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()

    async def _sent(self, request: HttpRequest) -> HttpConnection:
        reused = self._reusable()
        if reused is not None:
            try:
                return await self._send(reused, request)
            except ConnectionError:
                if reused.touched:
                    raise
                # The server closed it while it was being reused, and has not read the request.
        return await self._send(await self._connect(), request)

    async def _send(self, connection: HttpConnection, request: HttpRequest) -> HttpConnection:
        self._busy.add(connection)
        try:
            connection.send(self._head(request), request.body)
            await connection.head()
        except BaseException:
            self._busy.discard(connection)
            connection.abort()
            raise
        return connection

    def _reusable(self) -> HttpConnection | None:
        """The most recently used connection."""
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> HttpConnection:
        if self._closed:
            raise ConnectionError("the engine is stopped")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self._silence_s, self._is_crowded),
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError as error:
            raise TimeoutError(f"not connected within {CONNECT_TIMEOUT_S:g} s") from error
        return connection

    def _is_crowded(self) -> bool:
        return len(self._busy) > EAGER_REPLIES

    def _head(self, request: HttpRequest) -> bytes:
        lines = [f"{request.method} {self._prefix}{request.path} HTTP/1.1"]
        fields = {**self._headers, **request.headers}
        if request.body:
            fields["Content-Length"] = str(len(request.body))
        for name, value in fields.items():
            if not value.isprintable():
                raise ConfigError(
                    f"the header {name} would contain a line break or a control character: correct it"
                )
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
