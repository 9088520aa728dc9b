"""Every store of blobs keeps the same promises: a folder, and a real S3-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.store.blobs.base import NAMED_WITHIN_S, BlobMissing, BlobStore, BlobStoreError, StoredBlob, key_of
from polar.store.blobs.choice import blob_store_of
from polar.store.blobs.folder import FolderStore
from polar.store.blobs.s3 import CONNECTIONS, S3Store
from s3_server import CREDENTIALS, S3Server, s3_server
from waiting import hang_limit

_names = itertools.count()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs")
    server: S3Server = request.getfixturevalue("s3")
    bucket = f"bucket-{next(_names)}"
    server.make_bucket(bucket)
    return S3Store(bucket, "some/prefix")


async def all_of(store: BlobStore, owner: str) -> list[StoredBlob]:
    return sorted([blob async for page in store.pages(owner) for blob in page], key=lambda blob: blob.key)


@pytest.mark.parametrize("size", [0, 1, 2**20, 6 * 2**20 + 1])
async def test_a_blob_is_kept_to_the_byte(store: BlobStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    await store.put("me/aa/one", data)
    await store.put("me/aa/one", data)  # again, after a lost answer
    assert await store.get("me/aa/one") == data


async def test_a_missing_blob_is_named_with_its_store(store: BlobStore) -> None:
    with pytest.raises(BlobMissing, match=r"me/aa/gone.*server\.blobs") as refused:
        await store.get("me/aa/gone")
    assert store.name in str(refused.value)


async def test_deleting_takes_many_at_once_and_bears_missing_ones(store: BlobStore) -> None:
    keys = [f"me/{number % 3:02}/{number}" for number in range(7)]
    for key in keys:
        await store.put(key, b"x")
    await store.delete([*keys[:5], "me/00/never"])
    await store.delete([])
    assert [blob.key for blob in await all_of(store, "me")] == sorted(keys[5:])


async def test_the_list_has_size_and_age_and_only_what_the_owner_wrote(store: BlobStore) -> None:
    before = time.time() - 2
    await store.put("me/aa/one", b"123")
    await store.put("other/aa/two", b"45678")
    await store.put("me-too/aa/three", b"9")
    [found] = await all_of(store, "me")
    assert (found.key, found.size_bytes) == ("me/aa/one", 3)
    assert before <= found.at <= time.time() + 2
    assert await all_of(store, "stranger") == []


@pytest.mark.check
async def test_many_are_listed_completely(store: BlobStore) -> None:
    keys = [
        key_of("me", f"session-{number}", 1, b"", 0.0)
        for number in range(1200 if isinstance(store, S3Store) else 60)
    ]
    await asyncio.gather(*(store.put(key, b"x") for key in keys))
    assert [blob.key for blob in await all_of(store, "me")] == sorted(keys)


async def test_a_burst_opens_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gets all of a burst at once lets connections time out, and with them a result's upload."""
    under_way, most = 0, 0
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.01)
                under_way -= 1
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n')

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    store = S3Store("bucket", "")
    async with hang_limit():
        await asyncio.gather(*(store.put(f"me/aa/{number}", b"x") for number in range(10 * CONNECTIONS)))
    server.close()
    for writer in writers:
        writer.close()
    assert 1 < most <= CONNECTIONS


def test_a_key_differs_by_attempt_content_and_period() -> None:
    keys = {
        key_of("me", "add-0", 1, b"a", 0.0),
        key_of("me", "add-0", 2, b"a", 0.0),
        key_of("me", "add-0", 1, b"b", 0.0),
        key_of("me", "add-1", 1, b"a", 0.0),
        key_of("you", "add-0", 1, b"a", 0.0),
        key_of("me", "add-0", 1, b"a", NAMED_WITHIN_S),
    }
    assert len(keys) == 6
    assert key_of("me", "add-0", 1, b"a", NAMED_WITHIN_S - 1) in keys  # a repetition takes no more space


def test_the_longest_id_is_a_file_name() -> None:
    key = key_of("o" * 32, "s" * 128, 2**31 - 1, b"", 1e10)
    assert len(key.rpartition("/")[2]) + len(".12345678~.") < 255


async def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await FolderStore(tmp_path / "blobs").put("me/aa/one", b"x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "blobs").rglob("*")}
    assert modes == {"me": 0o700, "aa": 0o700, "one": 0o600}


async def test_a_full_or_missing_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file in the way")
    with pytest.raises(BlobStoreError, match="blobs: Not a directory"):
        await FolderStore(tmp_path / "blobs").put("me/aa/one", b"x")
    with pytest.raises(BlobStoreError):
        await FolderStore(tmp_path / "blobs").get("me/aa/one")


async def test_readers_see_all_of_a_blob_or_nothing(tmp_path: Path) -> None:
    store, old, new = FolderStore(tmp_path), b"a" * 2**20, b"b" * 2**20
    await store.put("me/aa/one", old)
    writing = asyncio.create_task(store.put("me/aa/one", new))
    while not writing.done():
        assert await store.get("me/aa/one") in (old, new)
    assert await store.get("me/aa/one") == new


WRITER = """
import asyncio, sys
from pathlib import Path
from polar.store.blobs.folder import FolderStore
async def main():
    store = FolderStore(Path(sys.argv[1]))
    for number in range(100_000):
        await store.put(f"me/aa/{number}", b"x" * 300_000)
        print(number, flush=True)
asyncio.run(main())
"""


async def test_what_was_stored_survives_a_kill_and_the_rest_is_listed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WRITER, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with hang_limit():
        lines = [await process.stdout.readline() for _ in range(20)]
        process.kill()
        lines += (await process.stdout.read()).splitlines()
        await process.wait()
    store = FolderStore(tmp_path)
    acknowledged = [f"me/aa/{int(line)}" for line in lines]
    for key in acknowledged:
        assert len(await store.get(key)) == 300_000
    left = {blob.key for blob in await all_of(store, "me")} - set(acknowledged)
    assert len(left) <= 2  # one whole or unfinished blob, which no row will name
    await store.delete(sorted(left))
    assert {blob.key for blob in await all_of(store, "me")} == set(acknowledged)


async def test_an_s3_store_that_is_away_or_unknown_says_so(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BlobStoreError, match="s3://no-such-bucket"):
        await S3Store("no-such-bucket", "").put("me/aa/one", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BlobStoreError, match="s3://bucket/deep") as refused:
        await S3Store("bucket", "deep").get("me/aa/one")
    assert not isinstance(refused.value, BlobMissing)


async def test_the_setting_chooses_the_store(tmp_path: Path, s3: S3Server) -> None:
    database = f"sqlite:///{tmp_path / 'server.db'}"
    beside = blob_store_of(None, database)
    assert beside is not None and beside.name == f"the folder {tmp_path / 'server.db.blobs'}"
    named = blob_store_of(f"folder:{tmp_path / 'there'}", "postgresql://host/name")
    assert named is not None and named.name == f"the folder {tmp_path / 'there'}"
    remote = blob_store_of("s3://bucket/a/b/", database)
    assert remote is not None and remote.name == "s3://bucket/a/b"
    assert blob_store_of("database", database) is None
    assert blob_store_of(None, "postgresql://host/name") is None
    assert blob_store_of(None, "sqlite://") is None


async def test_a_password_of_the_endpoint_is_in_no_message(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url.replace("//", "//user:of@secret@"))
    with pytest.raises(BlobStoreError, match=r"PUT http://127\.0\.0\.1") as refused:
        await S3Store("no-such-bucket", "").put("me/aa/one", b"x")
    assert "secret" not in str(refused.value)
