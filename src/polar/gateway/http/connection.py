"""One HTTP exchange at the ASGI level: body in with a bound, bytes out, and word of a client that left.

Raw ASGI, because the gateway must know two things frameworks hide: that the last byte was written while the
client was still there, and that a client went away while the engine was sampling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from polar.gateway.http.bodies import too_large

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

JSON = "application/json"
SSE = "text/event-stream"


LINE = "polar.line"
"""In the scope of a request: its `ClientLine`."""


class ClientLine(Protocol):
    """What the gateway's own server tells of a connection, which spares a task for each thing it is asked."""

    lost: asyncio.Future[None]
    """Done when the connection is gone."""

    @property
    def write_paused(self) -> bool:
        """Whether a write would wait for the client to read."""
        ...

    @property
    def stays(self) -> bool:
        """Whether the connection outlives the reply under way. One that does is lost by its client only."""
        ...

    def hold_next(self) -> None:
        """The next write leaves together with the one after it."""
        ...


class Connection:
    def __init__(self, receive: Receive, send: Send, line: ClientLine | None = None) -> None:
        self._receive = receive
        self._send = send
        self._line = line
        self._gone: asyncio.Future[None] | None = None
        self.started = False
        """Whether a status has been sent, after which there is no other."""

    async def read_body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client left before its request was whole")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit_bytes:
                raise too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def watch(self) -> asyncio.Future[None]:
        """Done when the client is gone. The request must have been read to its end before."""
        if self._gone is None:
            self._gone = self._line.lost if self._line else asyncio.create_task(self._until_gone())
        return self._gone

    @property
    def client_gone(self) -> bool:
        return self._gone is not None and self._gone.done()

    @property
    def may_block(self) -> bool:
        """Whether the next write may wait for the client."""
        return self._line is None or self._line.write_paused

    async def close(self) -> None:
        if self._gone is not None and self._line is None:
            self._gone.cancel()
            await asyncio.wait([self._gone])

    async def respond(self, status: int, body: bytes, headers: dict[str, str], media: str = JSON) -> bool:
        """The whole reply. True when it was written to a client that was still there."""
        await self._start(status, media, {"content-length": str(len(body)), **headers})
        return await self._end(body)

    async def start_stream(self, media: str = SSE) -> bool:
        """The head, which leaves with the first write."""
        await self._start(200, media, {"cache-control": "no-cache"})
        return not self.client_gone

    async def write(self, data: bytes) -> bool:
        """Waits while a client does not read. False when it is known to be gone."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        return not self.client_gone

    async def finish_stream(self, rest: bytes) -> bool:
        """The last bytes and a clean end. True when they were written to a client that was still there."""
        return await self._end(rest)

    async def _end(self, rest: bytes) -> bool:
        """The server drops without a word what is written to a client that left, so the watcher is asked after the
        last write, which waits for the ones before it. The `sleep(0)` lets it notice a client that left just
        before that write; what a client sends in answer is handled later. Where the server itself closes the
        connection at the end of the reply, the watcher is asked before the end."""
        if self._line is not None and self._line.stays:
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
        if self._line is not None:
            self._line.hold_next()
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
