"""`/readyz` tries the blob store: it names the store that fails and why, and leaves nothing in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from desk import Api, Clock, OpenServer

from polar.monitoring import readiness
from polar.server.retention.orphans import YOUNG_S
from polar.server.retention.run import remove_orphans
from polar.server.status import checks
from polar.store.blobs.base import BlobStoreError
from polar.store.blobs.folder import FolderStore
from s3_server import S3Server, s3_server
from waiting import hang_limit, until


@pytest.fixture(autouse=True)
def each_answer_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_S", -1.0)


async def ready(api: Api) -> tuple[int, dict[str, str]]:
    answer = await api.ask("GET", "/readyz", None)
    return answer.status, answer.body["checks"]


async def is_ready(api: Api) -> bool:
    return (await ready(api))[0] == 200


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_folder_that_cannot_be_written_is_named(open_server: OpenServer, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.write_text("in the way")
    api = await open_server(blobs=f"folder:{folder}")
    assert await ready(api) == (503, {"database": "ok", "blobs": f"the folder {folder}: Not a directory"})
    assert (await api.ask("GET", "/healthz", None)).status == 200
    folder.unlink()
    assert await ready(api) == (200, {"database": "ok", "blobs": "ok"})
    assert files_in(folder) == []


async def test_blobs_in_the_database_are_not_tried(open_server: OpenServer) -> None:
    assert await ready(await open_server(blobs="database")) == (200, {"database": "ok"})


@pytest.mark.check
async def test_an_s3_store_that_is_away_is_named_and_comes_back(open_server: OpenServer, tmp_path: Path) -> None:
    with s3_server(tmp_path) as s3:
        s3.make_bucket("uploads")
        api = await open_server(blobs="s3://uploads/deep")
        assert await ready(api) == (200, {"database": "ok", "blobs": "ok"})
        assert await left_in(api) == []
        s3.stop()
        status, parts = await ready(api)
        assert (status, parts["database"]) == (503, "ok")
        assert parts["blobs"].startswith("s3://uploads/deep: ") and s3.url in parts["blobs"]
        restarted_without_its_bucket(s3)
        assert "404" in (await ready(api))[1]["blobs"]
        s3.make_bucket("uploads")
        assert (await ready(api))[0] == 200


def restarted_without_its_bucket(s3: S3Server) -> None:
    s3.start()


async def left_in(api: Api) -> list[str]:
    state = api.server.state
    assert state.blobs is not None
    return [blob.key async for page in state.blobs.pages(state.identity) for blob in page]


class OddStore(FolderStore):
    """Fails in one of its functions."""

    def __init__(self, root: Path, fails: str) -> None:
        super().__init__(root)
        self.fails = fails
        self.reads = 0
        self.goes_on = asyncio.Event()

    async def get(self, key: str) -> bytes:
        self.reads += 1
        if self.fails == "hangs":
            await self.goes_on.wait()
        return b"other" if self.fails == "mixes up" else await super().get(key)

    async def delete(self, keys: Sequence[str]) -> None:
        if self.fails == "keeps":
            raise BlobStoreError(f"{self.name}: may not delete")
        await super().delete(keys)


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("hangs", "no answer within 0.2 s"),
        ("mixes up", "gives back another blob"),
        ("keeps", "may not delete"),
    ],
)
async def test_a_store_that_does_not_keep_its_promises_is_named(
    open_server: OpenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, why: str
) -> None:
    monkeypatch.setattr(checks, "STORE_S", 0.2 if fails == "hangs" else 6.0)
    api = await open_server()
    store = api.server.state.blobs = OddStore(tmp_path / "kept", fails)
    async with hang_limit():
        answers: list[Any] = [await ready(api) for _ in range(3)]
    assert {status for status, _ in answers} == {503}
    assert all(str(tmp_path / "kept") in parts["blobs"] and why in parts["blobs"] for _, parts in answers)
    assert len(files_in(tmp_path / "kept")) == (0 if fails == "mixes up" else 1)
    assert store.reads == (1 if fails == "hangs" else 3)
    store.fails = ""
    store.goes_on.set()
    await until(lambda: is_ready(api))
    assert files_in(tmp_path / "kept") == []


async def test_what_a_killed_server_left_of_a_probe_is_swept(
    open_server: OpenServer, clock: Clock, tmp_path: Path
) -> None:
    api = await open_server()
    state = api.server.state
    store = state.blobs = OddStore(tmp_path / "kept", "keeps")
    await ready(api)
    [left] = files_in(tmp_path / "kept")
    assert left.parent == tmp_path / "kept" / state.identity / "probe"
    store.fails = ""
    assert (await remove_orphans(state)).blobs == 0  # another server may be reading it
    clock.now = left.stat().st_mtime + YOUNG_S + 1
    assert (await remove_orphans(state)).blobs == 1
