"""One HTTP connection of the gateway: its body in, bytes out, and its leaving.

Raw ASGI over uvicorn's protocol, because the gateway must know what frameworks hide: that the last byte was
written while the client was still there, and that a client left while the engine was sampling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

from polar.bounded_http import BoundedHttp
from polar.gateway.http.bodies import too_large

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

JSON = "application/json"
SSE = "text/event-stream"
TRANSPORT = "polar.transport"
"""In the scope of a request: its `GatewayHttp`."""


class JoinedWrites:
    """A transport that can hold one write back and send it with the next: each write is a system call."""

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


class GatewayHttp(BoundedHttp):
    """A connection of the gateway, with knowledge of its client."""

    lost: asyncio.Future[None]
    """Done when the connection is gone."""

    @property
    def write_paused(self) -> bool:
        """Whether a write would wait for the client to read."""
        return self.flow.write_paused

    @property
    def stays(self) -> bool:
        """Whether the connection outlives the current reply. Then only its client can close it."""
        return self.cycle.keep_alive

    def hold_next(self) -> None:
        """The next write leaves together with the one after it."""
        self._writes.holds_next = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.lost = self.loop.create_future()
        self._writes = JoinedWrites(transport)
        super().connection_made(cast("asyncio.Transport", self._writes))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set_result(None)

    def prepare_scope(self) -> None:
        self.scope[TRANSPORT] = self  # pyright: ignore[reportGeneralTypeIssues]


class Connection:
    """One request and its response."""

    def __init__(self, receive: Receive, send: Send, transport: GatewayHttp | None = None) -> None:
        """`transport`: None under another ASGI server, where a task watches for the client's leaving."""
        self._receive = receive
        self._send = send
        self._transport = transport
        self._gone: asyncio.Future[None] | None = None
        self.started = False
        """Whether a status has been sent, after which there is no other."""

    async def read_body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client left before its request was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit_bytes:
                raise too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def watch(self) -> asyncio.Future[None]:
        """Done when the client is gone. The body must have been read to its end before."""
        if self._gone is None:
            self._gone = self._transport.lost if self._transport else asyncio.create_task(self._until_gone())
        return self._gone

    @property
    def client_gone(self) -> bool:
        return self._gone is not None and self._gone.done()

    @property
    def may_block(self) -> bool:
        """Whether the next write may wait for the client."""
        return self._transport is None or self._transport.write_paused

    async def close(self) -> None:
        if self._gone is not None and self._transport is None:
            self._gone.cancel()
            await asyncio.wait([self._gone])

    async def respond(self, status: int, body: bytes, headers: dict[str, str], media: str = JSON) -> bool:
        """The whole response. True if it was written to a client that was still there."""
        await self._start(status, media, {"content-length": str(len(body)), **headers})
        return await self.finish_stream(body)

    async def start_stream(self, media: str = SSE) -> bool:
        """The head, which leaves with the first write."""
        await self._start(200, media, {"cache-control": "no-cache"})
        return not self.client_gone

    async def write(self, data: bytes) -> bool:
        """Waits while the client does not read. False if it is known to be gone."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        return not self.client_gone

    async def finish_stream(self, rest: bytes) -> bool:
        """The last bytes and a clean end. True if they were written to a client that was still there.

        The server silently drops what is written to a client that left, so `client_gone` is checked after the last
        write. The `sleep(0)` lets a departure just before that write be noticed; what a client sends in answer is
        handled later. Where the server itself closes the connection after the response, the check comes before the
        end."""
        if self._transport is not None and self._transport.stays:
            await self._send({"type": "http.response.body", "body": rest, "more_body": False})
            await asyncio.sleep(0)
            return not self.client_gone
        await self.write(rest)
        await asyncio.sleep(0)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return not self.client_gone

    async def _start(self, status: int, media: str, headers: dict[str, str]) -> None:
        pairs = {"content-type": media, **headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        self.started = True
        if self._transport is not None:
            self._transport.hold_next()
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
