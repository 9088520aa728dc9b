"""Assigns llama.cpp's sequences to sessions, so that a session finds its prompt prefix in the cache.

A sequence keeps the tokens of its last call. A session gets the sequence it used last, if that is idle, else the
least recently used idle one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class SequenceTable:
    """Each sequence serves one generation at a time; a generation that finds none idle waits."""

    def __init__(self, parallel: int) -> None:
        self._room = asyncio.Semaphore(parallel)
        self._idle: dict[int, str | None] = dict.fromkeys(range(parallel))
        """Idle sequences and the last session of each, the least recently used first."""

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncGenerator[int]:
        async with self._room:
            sequence = self._take(session_id)
            try:
                yield sequence
            finally:
                self._idle[sequence] = session_id

    def _take(self, session_id: str) -> int:
        own = [sequence for sequence, owner in self._idle.items() if owner == session_id]
        sequence = own[-1] if own else next(iter(self._idle))
        del self._idle[sequence]
        return sequence
