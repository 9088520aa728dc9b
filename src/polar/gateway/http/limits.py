"""Connections as a hostile client meets them: what it can make the node hold is bounded before any key is seen.

The HTTP parser keeps whatever comes before a request's body, however long it is; and a session that opens
connections without end would take the descriptors that the node and its other sessions live on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polar.gateway.http.bodies import too_large
from polar.gateway.http.connection import LINE, AsgiMessage, Receive, Send

MAX_HEAD_BYTES = 2**16
"""Of a request's line and headers, or of what may follow its body."""
LISTENER_CONNECTIONS = 256
"""At one door, at once; one more is hung up on."""
LISTENER_BODIES = 16
"""So many of the largest bodies may be under way at one door."""
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")


class JoinedWrites:
    """A transport that can hold one write back, to send it together with the next: each is a system call."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self.holds_next = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self.holds_next:
            self._held, self.holds_next = data, False
        else:
            data, self._held = self._held + data, b""
            self._transport.write(data)


class BoundedHttp(HttpToolsProtocol):
    """Also the `ClientLine` of its requests."""

    _unread_bytes = 0
    """Since the parser last gave something away."""
    lost: asyncio.Future[None]

    @property
    def write_paused(self) -> bool:
        return self.flow.write_paused

    @property
    def stays(self) -> bool:
        return self.cycle.keep_alive

    def hold_next(self) -> None:
        self._writes.holds_next = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.lost = self.loop.create_future()
        self._writes = JoinedWrites(transport)
        super().connection_made(cast("asyncio.Transport", self._writes))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._unread_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Reads on behind the head of a request that offers an upgrade, such as to HTTP/2 in clear text. The offer
        is not taken up, as RFC 9110 lets a server do, but the parser would read no body after it."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("no tunnels here") from upgrade
            head, rest = self._head_without_upgrade(), data[upgrade.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + rest)

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        kept = [(name, value) for name, value in self.headers if name not in UPGRADE_HEADERS]
        lines = [method + b" " + self.url + b" HTTP/" + version, *(b": ".join(header) for header in kept)]
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # read again without the offer
        self._unread_bytes = 0
        self.scope[LINE] = self  # pyright: ignore[reportGeneralTypeIssues]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._unread_bytes = 0
        super().on_message_complete()


class ListenerHttp(BoundedHttp):
    """A connection at a session's own socket."""

    def __init__(self, *, guests: set[ListenerHttp], app: Any, **served: Any) -> None:
        super().__init__(**served, app_state={})
        self._guests = guests
        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self._guests) < LISTENER_CONNECTIONS:
            self._guests.add(self)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guests.discard(self)
        super().connection_lost(exc)


class BoundedBodies:
    """An app whose requests together may bring so many bytes while they are under way."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]], most_bytes: int) -> None:
        self._app = app
        self._room_bytes = most_bytes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        held_bytes = 0

        async def counted() -> AsgiMessage:
            nonlocal held_bytes
            message = await receive()
            size_bytes = len(message.get("body", b""))
            if size_bytes > self._room_bytes:
                raise too_large()
            held_bytes += size_bytes
            self._room_bytes -= size_bytes
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._room_bytes += held_bytes
