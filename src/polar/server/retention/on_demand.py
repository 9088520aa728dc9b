"""Removal that an operator asks for, by the server's rules or by others: counted, or done in the same batches."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from sqlalchemy import Connection, select

from polar.config import RetentionConfig
from polar.server.records.tables import storage
from polar.server.retention.orphans import orphans
from polar.server.retention.removal import Removal, forecast, remove_blobs, remove_events, remove_groups
from polar.server.retention.run import PAUSE_S, Step, remove_batch, remove_orphans
from polar.server.state import State
from polar.types import GcReport, GcRequest, StorageStatus

AT_MOST_S = 20.0
"""One request removes for so long; the client asks again for the rest."""


def status(connection: Connection, state: State) -> StorageStatus:
    row = connection.execute(select(storage)).one()
    return StorageStatus(
        place=state.blobs.name if state.blobs else "the database",
        blobs=row.blobs,
        blob_bytes=row.blob_bytes,
        results_removed=row.results_removed,
        events_removed=row.events_removed,
        retention=state.config.retention.model_dump(),
    )


async def collect(state: State, wanted: GcRequest) -> GcReport:
    given = wanted.model_dump(include=set(RetentionConfig.model_fields), exclude_none=True)
    rules = state.config.retention.model_copy(update=given)
    if wanted.dry_run:
        seen = await state.read(forecast, state.clock(), rules, wanted.unfetched)
        return _report(seen, await _seen_orphans(state))
    until = time.monotonic() + AT_MOST_S
    total, complete = Removal(), True
    steps: list[Step] = [partial(remove_groups, unfetched=wanted.unfetched), remove_blobs, remove_events]
    for step in steps:
        while complete and (removal := await remove_batch(state, step, rules)).anything:
            total = _sum(total, removal)
            complete = time.monotonic() < until
            await asyncio.sleep(PAUSE_S)
    left = await remove_orphans(state) if complete else Removal()
    return _report(total, left).model_copy(update={"complete": complete})


async def _seen_orphans(state: State) -> Removal:
    found = [blob async for page in orphans(state) for blob in page]
    return Removal(blobs=len(found), blob_bytes=sum(blob.size_bytes for blob in found))


def _sum(one: Removal, other: Removal) -> Removal:
    return Removal(
        one.groups + other.groups,
        one.sessions + other.sessions,
        one.blobs + other.blobs,
        one.blob_bytes + other.blob_bytes,
        one.events + other.events,
    )


def _report(removal: Removal, left: Removal) -> GcReport:
    return GcReport(
        groups=removal.groups,
        sessions=removal.sessions,
        blobs=removal.blobs,
        blob_bytes=removal.blob_bytes,
        events=removal.events,
        orphans=left.blobs,
        orphan_bytes=left.blob_bytes,
    )
