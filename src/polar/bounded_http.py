"""HTTP connections that cannot exhaust a server: heads, slow requests and open connections are bounded.

The gateway and the rollout server share it. Limits are enforced here because the HTTP parser itself buffers
whatever precedes a request's body, however long it is, and because a client that never ends its request holds a
descriptor without ever being asked for its key.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LOGGER = logging.getLogger("polar.http")
MAX_HEAD_BYTES = 2**16
"""Of a request's line and headers, or of what may follow its body."""
FEWEST_CONNECTIONS = 16
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
TIMED_OUT = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s"
)
NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s"
)


@dataclass(frozen=True)
class HttpLimits:
    connections: int = 4096
    """Open at once. Half of the process's file descriptors is the most."""
    stall_s: float = 30.0
    """A request that is not complete must send `progress_bytes` in this time, or be complete."""
    progress_bytes: int = 2**14


class OpenConnections:
    """The connections of one server. If there are too many, the one that has waited longest for its client goes:
    first those in the middle of a request, then idle ones. A new one is refused only if all others are served."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._most = min(limits.connections, _half_of_descriptors())
        self._open: dict[BoundedHttp, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = 0
        """Since the last sweep."""

    def add(self, connection: BoundedHttp) -> None:
        if len(self._open) >= self._most:
            self._closed += 1
            if not self._make_room():
                connection.refuse(NO_ROOM, b'{"detail": "too many connections are open; try again later"}')
                return
        self._open[connection] = None
        if self._sweep is None:
            self._sweep = connection.loop.call_later(self._limits.stall_s / 2, self._look, connection.loop)

    def discard(self, connection: BoundedHttp) -> None:
        self._open.pop(connection, None)

    def _make_room(self) -> bool:
        for may_go in (BoundedHttp.is_incomplete, BoundedHttp.is_idle):
            for connection in self._open:
                if may_go(connection):
                    self.discard(connection)
                    connection.transport.abort()
                    return True
        return False

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Twice in `stall_s`: a process that was itself stopped for a while must not blame its clients."""
        stalled = [each for each in self._open if each.has_stalled(self._limits.progress_bytes)]
        for connection in stalled:
            connection.refuse(TIMED_OUT, b'{"detail": "the request did not arrive in time"}')
        if count := self._closed + len(stalled):
            LOGGER.warning(
                "closed %d connections: unfinished requests, or more than %d at once", count, self._most
            )
        self._closed = 0
        self._sweep = loop.call_later(self._limits.stall_s / 2, self._look, loop) if self._open else None


def _half_of_descriptors() -> int:
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit  # noqa: PLC0415 - not on Windows
    except ImportError:
        return 2**20
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return 2**20 if soft == RLIM_INFINITY else max(FEWEST_CONNECTIONS, soft // 2)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP connection, with limits on what its client may send before the app sees it."""

    _unread_bytes = 0
    """Since the parser last passed something on."""
    _arrived_bytes = 0
    """Since the last look at the connection."""
    _strikes = 0
    """Looks in a row at which too little of a request had arrived."""
    _incomplete = True
    """The client is in the middle of a request, or has not sent any."""

    def __init__(self, *, open_connections: OpenConnections | None = None, **served: Any) -> None:
        """`open_connections`: None where the caller bounds them itself."""
        super().__init__(**served)
        self._all = open_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if self._all is not None:
            self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._all is not None:
            self._all.discard(self)
        super().connection_lost(exc)

    def is_incomplete(self) -> bool:
        return self._incomplete

    def is_idle(self) -> bool:
        """It waits for the next request of its client."""
        return not self._incomplete and self.cycle.response_complete

    def has_stalled(self, progress_bytes: int) -> bool:
        """Called at each look: whether too little arrived since the last two."""
        arrived, self._arrived_bytes = self._arrived_bytes, 0
        slow = self._incomplete and not self.flow.read_paused and arrived < progress_bytes
        self._strikes = self._strikes + 1 if slow else 0
        return self._strikes >= 2

    def refuse(self, answer: bytes, body: bytes) -> None:
        self.transport.write(answer % (len(body), body))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        self._arrived_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._unread_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """A request that offers an upgrade, such as to HTTP/2 in clear text, is parsed again without the offer:
        RFC 9110 lets a server ignore it, but the parser would stop before the body."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("CONNECT is not supported") from upgrade
            head, rest = self._head_without_upgrade(), data[upgrade.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + rest)

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        kept = [(name, value) for name, value in self.headers if name not in UPGRADE_HEADERS]
        lines = [method + b" " + self.url + b" HTTP/" + version, *(b": ".join(header) for header in kept)]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._incomplete = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # parsed again without the offer
        self._unread_bytes = 0
        self.prepare_scope()
        super().on_headers_complete()

    def prepare_scope(self) -> None:
        """For what a server adds to the scope of a request."""

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._unread_bytes = 0
        self._incomplete = False
        super().on_message_complete()
