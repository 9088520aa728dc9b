"""Blobs in the wrong place: those that no row names, which are deleted, and those in the database, which are moved
to the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from sqlalchemy import Connection, delete, select, update

from polar.server.errors import ApiError
from polar.server.records.tables import IS_INSIDE, among, sessions, upload_parts, uploads
from polar.server.records.uploads import count_blobs, may_name, read_blob, upload_packed
from polar.server.state import Change, State
from polar.store.blobs.base import StoredBlob, key_of

YOUNG_S = 3600.0
"""A blob of this age may belong to a result that is being recorded: several times `NAMED_WITHIN_S`, because clocks
differ."""


async def orphans(state: State) -> AsyncGenerator[list[StoredBlob]]:
    """Only those of this database: others may share the store."""
    if state.blobs is None:
        return
    async for page in state.blobs.pages(state.identity):
        old = [blob for blob in page if blob.at < state.clock() - YOUNG_S]
        named = await state.read(_named, [blob.key for blob in old]) if old else set[str]()
        if left := [blob for blob in old if blob.key not in named]:
            yield left


def _named(connection: Connection, keys: Sequence[str]) -> set[str]:
    query = select(uploads.c.blob_key).where(among(connection, uploads.c.blob_key, keys))
    return {key for key in connection.execute(query).scalars() if key is not None}


async def move_one(state: State) -> bool:
    """From the database into the store. False: there is none left."""
    if state.blobs is None or (found := await state.read(_inside)) is None:
        return False
    session_id, attempt = found
    try:
        blob = await asyncio.to_thread(upload_packed, await read_blob(state, session_id))
    except ApiError:  # removed meanwhile
        return True
    now = state.clock()
    key = await asyncio.to_thread(key_of, state.identity, session_id, attempt, blob, now)
    await state.blobs.put(key, blob)
    await state.change(_moved, session_id, StoredBlob(key, len(blob), now))
    return True


def _inside(connection: Connection) -> tuple[str, int] | None:
    query = select(uploads.c.session_id, sessions.c.attempt).join(
        sessions, sessions.c.session_id == uploads.c.session_id
    )
    row = connection.execute(query.where(IS_INSIDE).limit(1)).first()
    return None if row is None else (row.session_id, row.attempt)


def _moved(change: Change, session_id: str, moved: StoredBlob) -> None:
    mine = (uploads.c.session_id == session_id) & uploads.c.blob_key.is_(None) & (uploads.c.size_bytes > 0)
    before = change.connection.execute(select(uploads.c.size_bytes).where(mine)).scalar_one_or_none()
    if before is None or not may_name(change, moved.at):  # removed, or moved by another server, or too late
        return
    size = moved.size_bytes
    change.connection.execute(update(uploads).where(mine).values(blob=b"", blob_key=moved.key, size_bytes=size))
    change.connection.execute(delete(upload_parts).where(upload_parts.c.session_id == session_id))
    count_blobs(change, 0, size - before)
