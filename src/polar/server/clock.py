"""The server's time. Servers on one database expire each other's leases, so they must agree on the time, whatever
the clocks of their machines say: it is the database's, carried on by a clock that no one sets."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, func, select

Clock = Callable[[], float]
"""Unix seconds."""


class ServiceClock:
    """Goes on with the steady clock, and follows the wall clock only when it is told to: no lease expires because
    someone set a clock, and whoever makes it follow sees by how much that was."""

    def __init__(self, now: float, steady: Clock = time.monotonic) -> None:
        self._steady = steady
        self._offset = now - steady()

    def __call__(self) -> float:
        return self._steady() + self._offset

    def follow(self, now: float) -> float:
        """By how many seconds it was off."""
        moved = now - self()
        self._offset += moved
        return moved


def database_time(connection: Connection) -> float:
    """SQLite has no clock of its own, and all its servers are on one machine."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
