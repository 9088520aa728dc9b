"""A large upload goes into the database in parts: heartbeats go on meanwhile, and parts alone are no upload."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest
from desk import Clock, Desk, config_of, result_of

from polar.server.errors import Conflict, NotFound
from polar.server.records import results, uploads
from polar.server.state import State
from polar.types import Lease

MEGABYTE = 2**20


@pytest.fixture
async def desk(database: str, clock: Clock) -> AsyncGenerator[Desk]:
    state = await State.open(config_of(database, blobs="database"), clock)
    yield Desk(state, clock)
    await state.close()


async def leased(desk: Desk) -> tuple[str, Lease]:
    await desk.submit()
    node = await desk.register()
    return node, await desk.lease_one(node)


def upload_of(lease: Lease, size: int) -> uploads.Upload:
    return uploads.Upload(result_of(lease), random.Random(size).randbytes(size))


@pytest.mark.parametrize("size", [1, MEGABYTE, MEGABYTE + 1, 3 * MEGABYTE, 5 * MEGABYTE + 17])
async def test_it_is_kept_to_the_byte(desk: Desk, size: int) -> None:
    node, lease = await leased(desk)
    upload = upload_of(lease, size)
    await results.take(desk.state, node, upload)
    await results.take(desk.state, node, upload)  # an acknowledgement that got lost
    assert await uploads.read_blob(desk.state, "add-0") == upload.blob
    assert len((await desk.results()).results) == 1


async def test_heartbeats_are_answered_while_it_is_stored(desk: Desk) -> None:
    node, lease = await leased(desk)
    upload, beats = upload_of(lease, 48 * MEGABYTE), 0
    storing = asyncio.create_task(results.take(desk.state, node, upload))
    while not storing.done():
        await desk.beat(node, lease)
        beats += 1
    await storing
    assert beats >= upload.parts // 2


async def test_parts_of_a_lost_attempt_are_no_upload(desk: Desk) -> None:
    node, lease = await leased(desk)
    late = upload_of(lease, 3 * MEGABYTE)
    await desk.state.change(uploads.keep_part, late, 0)
    with pytest.raises(NotFound, match="no upload"):
        await uploads.read_blob(desk.state, "add-0")
    await desk.hand_back(node, lease)
    with pytest.raises(Conflict):
        await results.take(desk.state, node, late)
    again = await desk.lease_one(node)
    upload = upload_of(again, 2 * MEGABYTE)
    await results.take(desk.state, node, upload)
    assert await uploads.read_blob(desk.state, "add-0") == upload.blob
    assert [(row["attempt"], row["number"]) for row in await desk.rows("upload_parts")] == [(2, 0)]


async def test_a_shorter_blob_takes_the_place_of_a_longer_one(desk: Desk) -> None:
    node, lease = await leased(desk)
    longer, shorter = upload_of(lease, 4 * MEGABYTE), upload_of(lease, 2 * MEGABYTE)
    for number in range(longer.parts):
        await desk.state.change(uploads.keep_part, longer, number)
    await results.take(desk.state, node, shorter)
    assert await uploads.read_blob(desk.state, "add-0") == shorter.blob


async def test_a_session_that_ends_without_an_upload_leaves_no_parts(desk: Desk) -> None:
    node, lease = await leased(desk)
    await desk.state.change(uploads.keep_part, upload_of(lease, 2 * MEGABYTE), 0)
    await desk.cancel_task("add")
    await desk.hand_back(node, lease)
    assert await desk.rows("upload_parts") == []
    with pytest.raises(NotFound, match="no upload"):
        await uploads.read_blob(desk.state, "add-0")
