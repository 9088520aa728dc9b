"""Counts the idle processors by watching them for a moment.

The load average will not do: for a minute after an installation it counts work that is over.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

WATCHED_S = 0.25
LOOKS = 6
PROC_STAT = Path("/proc/stat")


async def idle_processors() -> int:
    """Idle processors that this process may use; at least one. Takes the best of a few looks: processes that are
    just starting, such as those of a service beside us, are soon idle again."""
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
    idle = sum(after[3:5]) - sum(before[3:5])  # idle and iowait
    return (os.cpu_count() or 1) * (1 - idle / passed) if passed else 0.0


def _times() -> list[int]:
    """Ticks of all processors together since boot: user, nice, system, idle, iowait, irq, softirq, steal."""
    with PROC_STAT.open() as file:
        return [int(ticks) for ticks in file.readline().split()[1:9]]
