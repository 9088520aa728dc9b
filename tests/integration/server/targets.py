"""Callback targets on real sockets: one that listens as told, and some that are hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

from waiting import hang_limit


@dataclass
class Trainer:
    """Answers with the statuses it was given, then with 200, and keeps what it heard."""

    url: str = ""
    statuses: list[int] = field(default_factory=list[int])
    heard: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list[tuple[str, dict[str, str], bytes]])
    """Key, headers, body."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    most_at_once: int = 0
    hold: asyncio.Event | None = None
    """Answers wait for it."""
    _at_once: int = 0

    @property
    def keys(self) -> list[str]:
        return [key for key, _, _ in self.heard]

    async def handle(self, request: web.Request) -> web.Response:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            body = await request.read()
            self.heard.append((request.headers["Idempotency-Key"], dict(request.headers), body))
            self.changed.set()
            if self.hold is not None:
                await self.hold.wait()
            status = self.statuses.pop(0) if self.statuses else 200
            headers = {"Location": "/elsewhere"} if 300 <= status < 400 else None
            return web.Response(status=status, headers=headers)
        finally:
            self._at_once -= 1

    async def until(self, enough: Callable[[], bool]) -> None:
        async with hang_limit():
            while not enough():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def trainer(*statuses: int) -> AsyncGenerator[Trainer]:
    listening = Trainer(statuses=list(statuses))
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", listening.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    listening.url = f"http://127.0.0.1:{runner.addresses[0][1]}/done"
    try:
        yield listening
    finally:
        await runner.cleanup()


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def _silent(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _not_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP\0\xff\r\n" * 10)
    await writer.drain()


async def _huge_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Long: " + b"y" * 8000 + b"\r\n")
        await writer.drain()


async def _hang_up(_: asyncio.StreamWriter) -> None:
    return


HOSTILE = {
    "endless": _endless,
    "silent": _silent,
    "not_http": _not_http,
    "huge_header": _huge_header,
    "hang_up": _hang_up,
}


@asynccontextmanager
async def hostile(kind: str) -> AsyncGenerator[str]:
    """The address of a target of that kind."""
    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await reader.read(100)
            await HOSTILE[kind](writer)
        writer.transport.abort()  # not close, which would wait for a client that does not read

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.add(asyncio.create_task(converse(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/done"
    finally:
        server.close()
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
        await asyncio.sleep(0)  # transports close at the loop's next turn
