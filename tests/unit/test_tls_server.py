"""The end of a session's TLS listener, on asyncio's own event loop, which callers of `run_async` may have."""

from __future__ import annotations

import asyncio
import socket
import ssl

from polar.tls_server import TlsServer
from waiting import until


async def test_the_next_socket_with_the_listeners_number_is_heard() -> None:
    """The event loop knows sockets by number: a listener closed while it is watched takes the next one with it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    number = listener.fileno()
    server = TlsServer(listener, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), asyncio.Protocol)
    await asyncio.sleep(0.05)
    server.close()
    pairs = [socket.socketpair() for _ in range(3)]  # of another session, in the same turn of the loop
    heard = asyncio.Event()
    for ours, theirs in pairs:
        if number in (ours.fileno(), theirs.fileno()):
            here, there = (ours, theirs) if ours.fileno() == number else (theirs, ours)
            asyncio.get_running_loop().add_reader(here, heard.set)
            await asyncio.sleep(0.05)
            there.send(b"x")
            async with asyncio.timeout(5):
                await heard.wait()
            asyncio.get_running_loop().remove_reader(here)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    await until(lambda: listener.fileno() == -1)
