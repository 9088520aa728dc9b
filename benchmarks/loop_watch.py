"""Watches an event loop from inside: how late a ticker comes, how much memory the process has, who is in flight.

A ticker is late when the loop, or the machine, has something else to do; a process beside it with the same ticker
and no work shows the machine's part.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from target_process import rss_bytes

from polar.types import Stage

TICK_S = 0.005


@dataclass
class LoopWatch:
    """Also a watcher of stages: sessions that run are in flight."""

    longest_s: float = 0.0
    late_ticks: int = 0
    """Those more than 50 ms late."""
    peak_bytes: int = 0
    running: int = 0
    most_running: int = 0
    stages: Counter[Stage] = field(default_factory=Counter[Stage])
    _stage_of: dict[str, Stage] = field(default_factory=dict[str, Stage])

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        self.running += (stage is Stage.RUNNING) - (self._stage_of.get(session_id) is Stage.RUNNING)
        self.most_running = max(self.most_running, self.running)
        self._stage_of[session_id] = stage
        self.stages[stage] += 1

    def restart(self) -> None:
        """Forgets the worst so far."""
        self.longest_s, self.late_ticks, self.peak_bytes = 0.0, 0, 0

    async def _tick(self) -> None:
        ticks = 0
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s = time.monotonic() - due
            self.longest_s = max(self.longest_s, late_s)
            self.late_ticks += late_s > 0.05
            ticks += 1
            if not ticks % 20:
                self.peak_bytes = max(self.peak_bytes, rss_bytes())


@asynccontextmanager
async def watched_loop() -> AsyncGenerator[LoopWatch]:
    watch = LoopWatch()
    task = asyncio.create_task(watch._tick())  # pyright: ignore[reportPrivateUsage]
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
