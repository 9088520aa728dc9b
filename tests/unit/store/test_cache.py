"""A folder of the cache is filled once, and complete or absent."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from polar.errors import PolarError
from polar.store.cache import cached_folder
from waiting import hang_limit


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


async def write_weights(folder: Path) -> None:
    (folder / "weights").write_text("w")


async def test_a_missing_folder_is_filled_and_then_kept(cache: Path) -> None:
    folder = await cached_folder("model", write_weights)

    async def never(folder: Path) -> None:
        raise AssertionError("filled twice")

    assert await cached_folder("model", never) == folder == cache / "model"
    assert (folder / "weights").read_text() == "w"


async def test_names_may_have_folders_of_their_own(cache: Path) -> None:
    assert await cached_folder("harness/pi-1.0", write_weights) == cache / "harness" / "pi-1.0"


async def test_others_cannot_look_into_a_private_one_and_can_use_the_rest(cache: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = await cached_folder("workspaces/one", write_weights, private=True)
        program = await cached_folder("harness/pi", write_weights)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o755]
    assert [path.stat().st_mode & 0o777 for path in (cache, program.parent, program)] == [0o755] * 3


async def test_a_fill_that_fails_leaves_nothing_and_may_be_tried_again(cache: Path) -> None:
    async def breaks_off(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        await cached_folder("model", breaks_off)
    assert not (cache / "model").exists()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert ((await cached_folder("model", write_weights)) / "weights").read_text() == "w"


async def test_several_at_once_fill_it_once(cache: Path) -> None:
    fills = 0

    async def slow(folder: Path) -> None:
        nonlocal fills
        fills += 1
        await asyncio.sleep(0.05)
        await write_weights(folder)

    folders = await asyncio.gather(*(cached_folder("model", slow) for _ in range(5)))
    assert set(folders) == {cache / "model"}
    assert fills == 1


async def test_any_number_may_wait_for_one_that_needs_a_thread(cache: Path) -> None:
    async def fill(folder: Path) -> None:
        await asyncio.to_thread((folder / "weights").write_text, "x")

    async with hang_limit():
        folders = await asyncio.gather(*(cached_folder("model", fill) for _ in range(64)))

    assert set(folders) == {cache / "model"}


async def test_who_waits_for_another_process_can_be_cancelled(cache: Path) -> None:
    async def fill(folder: Path) -> None:
        raise AssertionError("it is another's to fill")

    cache.mkdir()
    with (cache / ".model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await cached_folder("model", fill)


async def test_what_a_killed_fill_has_left_goes(cache: Path) -> None:
    left = cache / ".model~half"
    left.mkdir(parents=True)

    await cached_folder("model", write_weights)

    assert not left.exists()


async def test_a_cache_that_cannot_be_written_is_an_error(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(PolarError, match=r"cannot write to .*; set POLAR_CACHE"):
        await cached_folder("models/small", write_weights)
