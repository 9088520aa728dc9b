"""Several servers start at once on a database of an older Polar."""

from __future__ import annotations

import asyncio
from pathlib import Path

from desk import Clock, Desk, config_of
from test_state_blobs import written_by_schema_7

from polar.server.records import uploads
from polar.server.retention.orphans import move_one
from polar.server.state import State


async def test_it_is_migrated_once_and_each_upload_is_moved_once(
    database: str, clock: Clock, tmp_path: Path
) -> None:
    blobs = await written_by_schema_7(database, clock)
    config = config_of(database, blobs=f"folder:{tmp_path / 'blobs'}")
    states = await asyncio.gather(*(State.open(config, clock) for _ in range(4)))
    assert len({state.identity for state in states}) == 1
    desk = Desk(states[0], clock)
    assert len(await desk.rows("storage")) == 1
    assert len(await desk.rows("polar_server")) == 1

    async def move(state: State) -> None:
        while await move_one(state):
            pass

    await asyncio.gather(*map(move, states))
    for name, blob in blobs.items():
        assert uploads.upload_msgpack(await uploads.read_blob(states[1], name)) == blob
    [storage] = await desk.rows("storage")
    sizes = [row["size_bytes"] for row in await desk.rows("uploads")]
    assert (storage["blobs"], storage["blob_bytes"]) == (2, sum(sizes))
    for state in states:
        await state.close()
