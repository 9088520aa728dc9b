"""How a server ends: at once if nothing is open, else when its requests are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from polar import uvicorn_server
from polar.uvicorn_server import UvicornServer, address_of, listen
from waiting import HANG_S, hang_limit


class SlowApp:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture(autouse=True)
def without_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the next one hangs."""
    monkeypatch.setattr(uvicorn_server, "TICK_S", 10 * HANG_S)


async def test_a_server_without_connections_ends_at_once() -> None:
    server, listening = UvicornServer(SlowApp()), listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with hang_limit():
        await server.until_started(serving)
        server.end()
        await serving
    assert listening.fileno() == -1, "nothing is accepted any more"


async def test_a_request_under_way_is_answered_first() -> None:
    app = SlowApp()
    server, listening = UvicornServer(app), listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with hang_limit(), aiohttp.ClientSession() as http:
        await server.until_started(serving)
        request = asyncio.create_task(http.get(address_of(listening)))
        await app.asked.wait()
        server.end()
        app.answer.set()
        async with await request as reply:
            assert await reply.read() == b"done"
        await serving
