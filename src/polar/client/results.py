"""Follows results by cursor until every selected session has one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from polar.types import ResultEntry, ResultPage

PAGE = 100
"""Results per request; a shorter page ends at the newest result."""
WAIT_S = 30.0
"""How long the server may wait for a result before it answers."""

ReadResults = Callable[[int], Awaitable[ResultPage]]
"""Takes a cursor."""


async def follow_results(read: ReadResults, after: int) -> AsyncGenerator[ResultEntry]:
    while True:
        page = await read(after)
        for entry in page.results:
            yield entry
        if page.all_done and len(page.results) < PAGE:
            return
        after = page.cursor
