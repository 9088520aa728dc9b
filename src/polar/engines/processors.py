"""How many processors are free for an engine, by watching them for a moment.

Not by the load average: for a minute after an installation it counts work that is over.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

WATCHED_S = 0.25
LOOKS = 6
PROC_STAT = Path("/proc/stat")


async def idle_processors() -> int:
    """Processors this process may use and nobody uses now; at least one. The best of a few looks: whoever just
    starts, such as the processes of a service beside us, is soon quiet again."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    idle = 1
    for _ in range(LOOKS):
        idle = max(idle, usable - round(await _busy_processors()))
        if idle == usable:
            break
    return idle


async def _busy_processors() -> float:
    if not PROC_STAT.exists():
        return os.getloadavg()[0]
    before = _times()
    await asyncio.sleep(WATCHED_S)
    after = _times()
    passed = sum(after) - sum(before)
    idle = sum(after[3:5]) - sum(before[3:5])  # idle, and waiting for a disk
    return (os.cpu_count() or 1) * (1 - idle / passed) if passed else 0.0


def _times() -> list[int]:
    """Ticks of all processors together since the start: user, nice, system, idle, iowait, irq, softirq, steal."""
    with PROC_STAT.open() as file:
        return [int(ticks) for ticks in file.readline().split()[1:9]]
