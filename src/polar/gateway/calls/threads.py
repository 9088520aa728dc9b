"""Threads of the call path: reading long bodies, matching and rendering long prompts.

They do nothing else, so a call never waits behind a session's files or an upload.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
FEWEST = 4
"""Even with two processors: while one thread encodes a long text, the others do short work."""


class CallThreads:
    """A node's; closed with it."""

    def __init__(self) -> None:
        most = max(FEWEST, os.cpu_count() or FEWEST)
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="polar-calls")

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` and waits for its end even when cancelled: the caller holds locks for what it works on."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(running)
        finally:
            await asyncio.wait([running])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
