"""The TLS server of one session's listener, where names of providers lead that the session intercepts.

asyncio's own TLS server calls a protocol only after the handshake, so connections that stall before it would be
counted nowhere. Here each one counts from its acceptance.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

LOGGER = logging.getLogger("polar.gateway")
HANDSHAKE_S = 20.0
"""A client that has not completed its handshake by then is disconnected."""
SHUTDOWN_S = 2.0
"""How long a client may take to answer the end of TLS."""
PAUSE_S = 0.1
"""Before the next try to accept, if the node has no descriptor left."""


class TlsServer:
    """Accepts until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        connection: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
    ) -> None:
        """`has_room`: whether one more may be open, with so many of them in their handshakes."""
        self._listener = listener
        self._context = context
        self._connection = connection
        self._has_room = has_room
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="TLS listener of a session")

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in tuple(self._handshakes):
            handshake.cancel()
        # Not now: asyncio still watches its number, which the next socket would get.
        self._accepting.add_done_callback(lambda _: self._listener.close())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                LOGGER.warning("cannot accept a connection of a session: %s", error.strerror)
                await asyncio.sleep(PAUSE_S)
                continue
            if not self._has_room(len(self._handshakes)):
                accepted.close()
                continue
            handshake = asyncio.create_task(self._shake_hands(accepted), name="TLS handshake of a session")
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """A client that speaks no TLS, or does not trust the certificate, is disconnected."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, asyncio.IncompleteReadError) as error:
            LOGGER.debug("no TLS with a client of a session: %s", error)
