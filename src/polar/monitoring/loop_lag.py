"""How late the event loop comes back to a timer: while it is stalled, no request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from polar.monitoring.exposition import Meters

TICK_S = 0.1
BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopLag:
    def __init__(self, meters: Meters) -> None:
        about = f"How late a timer of {TICK_S:g} s fired: above 0.25 s the process was stalled."
        self._lag = meters.histogram("polar_event_loop_lag_seconds", about, BUCKETS_S)

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lag.observe(max(0.0, loop.time() - due))


@asynccontextmanager
async def watched_lag(meters: Meters) -> AsyncGenerator[None]:
    watching = asyncio.create_task(LoopLag(meters).watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
