"""Between blob and row: uploads, sweeps, removals and readers at the same time, on one database and its store."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from desk import Clock, Desk, blob_of, config_of, result_of

from polar.config import RetentionConfig
from polar.server.errors import Gone
from polar.server.records import results, uploads
from polar.server.retention import fetched
from polar.server.retention.orphans import YOUNG_S, move_one
from polar.server.retention.removal import DAY_S, remove_blobs, remove_groups
from polar.server.retention.run import remove_batch, remove_orphans
from polar.server.state import State
from polar.store.blobs.base import BlobStoreError
from polar.store.blobs.folder import FolderStore

Meanwhile = Callable[[], Awaitable[object]]


class SlowStore(FolderStore):
    """Something else happens before it reads or deletes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before_delete: Meanwhile | None = None
        self.before_get: Meanwhile | None = None

    async def delete(self, keys: Sequence[str]) -> None:
        meanwhile, self.before_delete = self.before_delete, None
        if meanwhile is not None:
            await meanwhile()
        await super().delete(keys)

    async def get(self, key: str) -> bytes:
        meanwhile, self.before_get = self.before_get, None
        if meanwhile is not None:
            await meanwhile()
        return await super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path / "blobs")


@pytest.fixture
async def desk(database: str, clock: Clock, store: SlowStore) -> AsyncGenerator[Desk]:
    state = await State.open(config_of(database), clock)
    state.blobs = store
    yield Desk(state, clock)
    await state.close()


async def leased(desk: Desk, task_id: str = "add") -> tuple[str, uploads.Upload]:
    await desk.submit(task_id)
    node = await desk.register()
    lease = await desk.lease_one(node)
    return node, uploads.checked(blob_of(result_of(lease)), lease.session.session_id, 1)


async def ended(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    await desk.report(node, await desk.lease_one(node))


async def fetch(desk: Desk) -> None:
    page = await desk.results()
    await desk.state.change(fetched.mark_results, [entry.cursor for entry in page.results])


def to_time_of(clock: Clock, tmp_path: Path) -> None:
    """Blobs have the times of the file system."""
    files = [path.stat().st_mtime for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    clock.now = max(clock.now, *files)


async def test_a_blob_that_comes_again_while_its_leftover_is_swept_stays(
    desk: Desk, clock: Clock, store: SlowStore, tmp_path: Path
) -> None:
    """The server was killed between blob and result; the node tries again an hour later."""
    node, upload = await leased(desk)
    await uploads.put_blob(desk.state, upload)
    to_time_of(clock, tmp_path)
    clock.advance(YOUNG_S + 1)
    store.before_delete = lambda: results.take(desk.state, node, upload)
    assert (await remove_orphans(desk.state)).blobs == 1
    assert await uploads.read_blob(desk.state, "add-0") == upload.blob


async def test_a_blob_that_was_swept_is_named_by_no_result(desk: Desk, clock: Clock, tmp_path: Path) -> None:
    """The database did not answer this server for hours, while another one swept."""
    node, upload = await leased(desk)
    stored = await uploads.put_blob(desk.state, upload)
    to_time_of(clock, tmp_path)
    clock.advance(YOUNG_S + 1)
    await remove_orphans(desk.state)
    with pytest.raises(BlobStoreError, match="again"):
        await desk.state.change(results.record, node, stored)
    await results.take(desk.state, node, upload)
    assert await uploads.read_blob(desk.state, "add-0") == upload.blob


async def test_an_upload_that_is_removed_while_it_is_read_is_gone_and_not_lost(
    desk: Desk, clock: Clock, store: SlowStore
) -> None:
    await ended(desk)
    await fetch(desk)
    clock.advance(3 * DAY_S)
    store.before_get = lambda: remove_batch(desk.state, remove_blobs, RetentionConfig(blobs_days=1))
    with pytest.raises(Gone, match="retention has removed the upload"):
        await uploads.read_blob(desk.state, "add-0")


async def test_a_session_that_is_removed_while_its_upload_is_read_is_gone(
    desk: Desk, clock: Clock, store: SlowStore
) -> None:
    await ended(desk)
    await fetch(desk)
    clock.advance(3 * DAY_S)
    store.before_get = lambda: remove_batch(desk.state, remove_groups, RetentionConfig(results_days=1))
    with pytest.raises(Gone, match="removed task 'add'"):
        await uploads.read_blob(desk.state, "add-0")


async def test_uploads_are_compressed_beside_the_event_loop(
    database: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an older Polar may be large, and heartbeats must not wait for them."""
    state = await State.open(config_of(database, blobs="database"), clock)
    desk = Desk(state, clock)
    await ended(desk)
    state.blobs, threads = FolderStore(tmp_path / "blobs"), list[threading.Thread]()

    def noted(blob: bytes) -> bytes:
        threads.append(threading.current_thread())
        return blob

    monkeypatch.setattr("polar.server.retention.orphans.upload_packed", noted)
    assert await move_one(state)
    assert threads and threading.main_thread() not in threads
    await state.close()
