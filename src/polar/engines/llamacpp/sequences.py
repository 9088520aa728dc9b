"""Which of llama.cpp's sequences a session uses, so that its prompt prefix is still in the cache.

A sequence keeps the tokens it last held. A session comes back to its own where it can; a session without
one takes over the idle sequence that has not been used for the longest time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class SequenceTable:
    """Hands out sequences, each to one generation at a time; whoever finds none idle waits in line."""

    def __init__(self, parallel: int) -> None:
        self._room = asyncio.Semaphore(parallel)
        self._idle: dict[int, str | None] = dict.fromkeys(range(parallel))
        """Idle sequences and the session that used each last, the least recently used first."""

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
