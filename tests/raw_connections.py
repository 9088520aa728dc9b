"""Connections that speak no proper HTTP, and requests whose heads do not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
endless_heads = pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"GET /", b"x"),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
        (b"GET / HTTP/1.1\r\na: ", b"x"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"a: b\r\n"),
    ],
    ids=["path", "headers", "one-header", "trailers"],
)


@contextlib.asynccontextmanager
async def connected(base_url: str) -> AsyncIterator[Streams]:
    parts = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def send_without_end(base_url: str, beginning: bytes, piece: bytes) -> None:
    """Up to 32 MiB. Raises `ConnectionError` when the other side hangs up."""
    async with connected(base_url) as (_, writer):
        writer.write(beginning)
        for _ in range(500):
            writer.write(piece * (2**16 // len(piece)))
            await writer.drain()
