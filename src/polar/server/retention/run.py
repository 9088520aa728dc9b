"""Retention while the server runs: a batch at a time, with pauses, so that heartbeats and uploads do not wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from polar.config import RetentionConfig
from polar.server.errors import ApiError
from polar.server.retention.orphans import move_one, orphans
from polar.server.retention.removal import Removal, remove_blobs, remove_events, remove_groups
from polar.server.state import Change, State
from polar.store.database import StoreError

LOOK_EVERY_S = 5.0
PAUSE_S = 0.05
"""Between two batches."""
ORPHANS_EVERY_S = 3600.0

log = logging.getLogger("polar.server")
Step = Callable[[Change, RetentionConfig], Removal]
STEPS: tuple[Step, ...] = (remove_groups, remove_blobs, remove_events)


class Retention:
    """Several servers on one database may run it: each batch is a transaction of its own."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rules = state.config.retention

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            try:
                for step in STEPS:
                    while (await remove_batch(self._state, step, self._rules)).anything:  # noqa: ASYNC110
                        await asyncio.sleep(PAUSE_S)
                while await move_one(self._state):  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
                if loop.time() - swept >= ORPHANS_EVERY_S:
                    await remove_orphans(self._state)
                    swept = loop.time()
            except (StoreError, ApiError) as error:
                log.warning("retention has to wait: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)


async def remove_batch(state: State, step: Step, rules: RetentionConfig) -> Removal:
    removal = await state.change(step, rules)
    if removal.keys and state.blobs is not None:
        await state.blobs.delete(removal.keys)
    return removal


async def remove_orphans(state: State) -> Removal:
    total = Removal()
    async for left in orphans(state):
        assert state.blobs is not None
        await state.blobs.delete([blob.key for blob in left])
        size = sum(blob.size_bytes for blob in left)
        total = replace(total, blobs=total.blobs + len(left), blob_bytes=total.blob_bytes + size)
        await asyncio.sleep(PAUSE_S)
    if total.blobs:
        log.info("deleted %d blobs that no result has, %d bytes", total.blobs, total.blob_bytes)
    return total
