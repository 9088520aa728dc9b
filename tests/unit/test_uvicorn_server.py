"""How a server ends, at once if nothing is open, else when its requests are answered; and how it begins with
clients that are there before it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from certificates import Authority
from polar import uvicorn_server
from polar.tls import TlsCertificate, client_context
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


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_spoke_before_it_was_accepted_is_heard(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """As at a busy server: the beginning of its handshake is there when its connection is made."""
    authority = Authority(tmp_path)
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    authority.sign(cert, key)
    app = SlowApp()

    async def serve() -> bytes:
        server, listening = UvicornServer(app, certificate=TlsCertificate(cert, key)), listen("127.0.0.1", 0)
        app.answer.set()
        client = await asyncio.to_thread(begin_handshake, listening.getsockname(), authority.file)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with hang_limit():
            try:
                return await asyncio.to_thread(ask, client)
            finally:
                client.close()
                server.end()
                await serving

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(serve()).endswith(b"done")


def begin_handshake(address: tuple[str, int], ca_file: Path) -> ssl.SSLSocket:
    """Has sent its hello, and waits for nothing."""
    raw = socket.create_connection(address)
    context = client_context(ca_file)
    client = context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
    client.setblocking(False)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    client.settimeout(HANG_S / 10)
    return client


def ask(client: ssl.SSLSocket) -> bytes:
    client.do_handshake()
    client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    return b"".join(iter(lambda: client.recv(65536), b""))
