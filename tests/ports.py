"""Ports for servers that a test stops and starts again at the same address."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(15_000, 32_000)
"""The kernel gives none of these to a connection, so no other test gets the port while the server is away."""


def port_to_come_back_to() -> int:
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
