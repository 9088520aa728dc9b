"""HTTP/1.1 to one inference server: connections that are kept, and replies read in batches.

A streamed reply is hundreds of small events. A connection collects their bytes and wakes nobody, and its reader
takes everything that has arrived in one step. Bytes that came before a connection broke are handed out before the
error is raised, so nothing that the engine sampled is lost. A general HTTP client does neither.
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
"""How long an unused connection is kept. Common servers close theirs after 5 s."""
EAGER_REPLIES = 8
"""With more replies under way at once, a paced reader leaves the bytes in the socket between reads: waking up for
each event would cost more than all the rest of a call. The end of a reply is then seen one pace later."""
MAX_UNREAD_BYTES = 4 * 2**20
"""A server that sends faster than its reply is read is slowed down from here on."""


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class HttpConnection(asyncio.Protocol):
    """One TCP connection, with one request under way at a time. It is its own parser's listener."""

    def __init__(self, silence_s: float, is_crowded: Callable[[], bool]) -> None:
        self._silence_s = silence_s
        self._is_crowded = is_crowded
        self._loop = asyncio.get_running_loop()
        self.status = 0
        self.headers: dict[str, str] = {}
        """Of the reply, with names in lower case."""
        self.touched = False
        """Whether a byte of the reply has come."""
        self.complete = True
        """Whether no reply is under way."""
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
        """All bytes of the body that have arrived; empty at its end. Waits for the first, and until `pace_s`
        after the last read, but not beyond the end of the reply."""
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
        """Waits for the end of the reply, no longer than the limit."""
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
        """For a change; with a limit, only for the end of the reply or of the limit."""
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

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_at, self.touched = self._loop.time(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(ConnectionError(f"what the server sent is not HTTP: {error}"))
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

    # What the parser calls. A second reply in the same bytes is not this request's, and nothing of it is kept.

    def on_message_begin(self) -> None:
        if self.complete:
            self._break(ConnectionError("the server sent a reply that nobody asked for"))
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
    """Requests to one server, as many at once as are asked for."""

    def __init__(self, url: str, headers: Mapping[str, str], silence_s: float) -> None:
        """`url`: the server's root. `silence_s`: a server that sends nothing for so long is given up."""
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
        connection, by which the server knows that nobody wants the rest. Raises `OSError`, of which `TimeoutError`
        is one."""
        connection = await self._asked(request)
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

    async def _asked(self, request: HttpRequest) -> HttpConnection:
        kept = self._kept()
        if kept is not None:
            try:
                return await self._send(kept, request)
            except ConnectionError:
                if kept.touched:
                    raise
                # The server closed it at the moment it was used again: nobody has seen the request.
        return await self._send(await self._connected(), request)

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

    def _kept(self) -> HttpConnection | None:
        """The connection used last; the others grow old together."""
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connected(self) -> HttpConnection:
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
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
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
                raise ConfigError(f"the header {name} would hold a line break or a control character: correct it")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
