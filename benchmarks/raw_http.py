"""The load's side of HTTP: one kept connection for each session, a request written whole, a reply read to its end.

It parses only what a reply's end needs, so that sending costs little beside what is measured.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
END = b"\r\n0\r\n\r\n"


class Unanswered(Exception):
    """The connection ended before the reply did."""


class BadAnswer(Exception):
    """Any status but 200."""


class RawConnection(asyncio.Protocol):
    """One request at a time; opens itself again where the server has closed it."""

    def __init__(self, url: str, path: str = "/v1/chat/completions", key: str = "") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address = parts.hostname, parts.port or 80
        head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            f"authorization: Bearer {key}\r\ncontent-type: application/json\r\naccept: */*\r\ncontent-length: "
        )
        self._head = head.encode()
        self._transport: Any = None
        self._reply: asyncio.Future[bytes] | None = None
        self._received = bytearray()
        self._whole = -1
        """Length of the reply with its head; -1: not known yet; 0: it comes in chunks."""

    async def post(self, body: bytes) -> bytes:
        """The body of the reply, without its chunks' lengths."""
        if self._transport is None or self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_connection(lambda: self, *self._address)
        self._reply = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._whole = -1
        self._transport.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
        return await self._reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Unanswered(f"{self._address}: {exc or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._whole < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            found = LENGTH.search(self._received, 0, end + 2)
            self._whole = end + 4 + int(found[1]) if found else 0
        if len(self._received) >= self._whole if self._whole else self._received.endswith(END):
            self._finish()

    def _finish(self) -> None:
        assert self._reply is not None
        head, _, body = bytes(self._received).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            self._reply.set_exception(BadAnswer(f"{self._address} answered {head[:40]!r}: {body[:300]!r}"))
        elif not self._reply.done():
            self._reply.set_result(body if self._whole else _without_chunks(body))


def _without_chunks(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        length = int(body[at:end], 16)
        if not length:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + length])
        at = end + 4 + length
