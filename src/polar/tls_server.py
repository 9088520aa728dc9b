"""A TLS server that counts every connection from its acceptance: of the rollout server, and of a session's
listener, where names of providers lead that the session intercepts.

asyncio's own TLS server calls a protocol only after the handshake, so connections that stall before it would be
counted nowhere. Nor can a plain connection become a TLS one afterwards (`loop.start_tls`): uvloop reads before
that, and what the client had sent by then, as it has at a busy server, is lost. Its handshake would never end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

LOGGER = logging.getLogger("polar.http")
HANDSHAKE_S = 30.0
"""A client that has not completed its handshake by then is disconnected. Longer than a client of ours waits, so
that it is the client that gives up and says why."""
MAX_HANDSHAKES = 256
"""Under way at once; beyond that, the oldest is broken off."""
SHUTDOWN_S = 2.0
"""How long a client may take to answer the end of TLS."""
PAUSE_S = 0.1
"""Before the next try to accept, if the process has no descriptor left."""


class TlsServer:
    """Accepts until it is closed, and then closes its socket."""

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        connection: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`context` is asked at each connection: certificates are renewed. `has_room`: whether one more may be
        open, with so many of them in their handshakes."""
        listener.setblocking(False)
        self._listener = listener
        self._context = context
        self._connection = connection
        self._has_room = has_room
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.create_task(self._accept(), name="TLS listener")

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in tuple(self._handshakes):
            handshake.cancel()
        # Not now: asyncio still watches its number, which the next socket would get.
        self._accepting.add_done_callback(lambda _: self._listener.close())

    async def wait_closed(self) -> None:
        await asyncio.wait((self._accepting, *self._handshakes))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                LOGGER.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._has_room(len(self._handshakes)):
                self._begin(accepted)
            else:
                accepted.close()

    def _begin(self, accepted: socket.socket) -> None:
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        handshake = asyncio.create_task(self._shake_hands(accepted), name="TLS handshake")
        self._handshakes[handshake] = None
        handshake.add_done_callback(partial(self._end, accepted))

    def _end(self, accepted: socket.socket, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)
        if handshake.cancelled():  # perhaps before it began
            accepted.close()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """A client that speaks no TLS, or does not trust the certificate, is disconnected."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:  # RuntimeError: it is closed already
            LOGGER.debug("no TLS with a client: %s", error)
