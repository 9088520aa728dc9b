"""The gateway's own socket."""

from __future__ import annotations

import socket

from polar.config import GatewayConfig
from polar.gateway.http.handler import GatewayApp
from polar.gateway.http.server import GatewayServer


async def test_a_reply_in_two_writes_does_not_wait_for_an_acknowledgement() -> None:
    """Accepted connections must send at once, else each reply is held back for 40 ms."""
    config = GatewayConfig()
    server = GatewayServer(GatewayApp({}, None), config)
    listening = server._socket  # pyright: ignore[reportPrivateUsage]
    listening.listen()
    with socket.create_connection(listening.getsockname()) as _:
        accepted, _address = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    listening.close()
