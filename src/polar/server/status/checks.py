"""What the server must be able to do to be ready: write to a database of its own schema version, and keep blobs in
its store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

from sqlalchemy import select, update

from polar.monitoring.readiness import Check
from polar.server.records.tables import SCHEMA_VERSION, schema
from polar.server.state import Change, State
from polar.store.blobs.base import BlobStore, BlobStoreError
from polar.store.database import StoreError

STORE_S = 6.0
"""Less than `CHECK_S`: the reason names a store that does not answer."""


def checks_of(state: State) -> Mapping[str, Check]:
    async def database() -> str:
        await state.change(write_probe)
        return ""

    return {"database": database} | ({"blobs": _blob_check(state)} if state.blobs is not None else {})


def _blob_check(state: State) -> Check:
    name = secrets.token_hex(8)  # the same for each probe of this server: it leaves one blob behind, if any
    under_way: set[asyncio.Task[None]] = set()

    def ended(probe: asyncio.Task[None]) -> None:
        under_way.discard(probe)
        if not probe.cancelled():
            probe.exception()  # perhaps no one waits for it any more

    async def blobs() -> str:
        assert state.blobs is not None
        if not under_way:  # one that hangs is not joined by others: each would hold a thread
            probe = asyncio.create_task(blob_probe(state.blobs, f"{state.identity}/probe/{name}"))
            under_way.add(probe)
            probe.add_done_callback(ended)
        done, _ = await asyncio.wait(under_way, timeout=STORE_S)
        if not done:
            raise BlobStoreError(f"{state.blobs.name}: no answer within {STORE_S:g} s")
        done.pop().result()
        return ""

    return blobs


async def blob_probe(store: BlobStore, key: str) -> None:
    """Writes, reads and deletes a blob. No upload has a key in this folder. What a probe that fails leaves there
    is deleted by the next one, or as every blob that no result names."""
    data = secrets.token_bytes(16)
    await store.put(key, data)
    is_same = await store.get(key) == data
    await store.delete([key])
    if not is_same:
        raise BlobStoreError(f"{store.name} gives back another blob than it was given")


def write_probe(change: Change) -> None:
    """Writes for real: a full disk and a database that became read-only still answer every question. Another
    server's Polar may have migrated the database meanwhile."""
    for step in (1, -1):  # there and back: SQLite writes nothing where a value stays as it is
        change.connection.execute(update(schema).values(version=schema.c.version + step))
    version = change.connection.execute(select(schema.c.version)).scalar_one()
    if version != SCHEMA_VERSION:
        raise StoreError(f"the database has schema version {version}, this Polar needs {SCHEMA_VERSION}")
