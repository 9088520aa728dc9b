"""Warm runtimes: one session each, only for exactly what it was started with, and none left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Finished, Program, SessionFolders
from polar.runtimes.options import Capabilities, RuntimeOptions
from polar.session.warm import WarmRuntimes
from polar.types import Spec
from waiting import until


class ContainedOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "none"), contains=("files", "processes")
    )
    image: str = "base"


class FakeContained:
    """Notes what becomes of it."""

    Options: type[BaseModel] = ContainedOptions
    made: ClassVar[list[FakeContained]] = []
    fails: ClassVar[bool] = False

    def __init__(self, options: ContainedOptions) -> None:
        self.image = options.image
        self.folders: SessionFolders | None = None
        self.is_started = self.is_stopped = self.is_dead = False
        self.session = ""
        self.made.append(self)

    async def start(self, folders: SessionFolders) -> None:
        if self.fails:
            raise RuntimeFailure("no room")
        self.folders = folders
        folders.root.mkdir(parents=True)
        await asyncio.sleep(0)
        self.is_started = True

    async def exec(self, command: Command) -> Finished:
        if self.is_dead:
            raise RuntimeFailure("it has ended")
        return Finished(exit_code=0)

    async def stop(self) -> None:
        self.is_stopped = True

    def adopt(self, session_id: str, logs: Path) -> None:
        self.session = session_id


class OpenOptions(RuntimeOptions):
    pass


class FakeOpen(FakeContained):
    """Contains nothing."""

    Options: type[BaseModel] = OpenOptions

    def __init__(self, options: Any) -> None:
        super().__init__(ContainedOptions())


SPEC = Spec(name=f"{__name__}:FakeContained")
OTHER = Spec(name=f"{__name__}:FakeContained", options={"image": "other"})


@pytest.fixture(autouse=True)
def none_made() -> None:
    FakeContained.made.clear()
    FakeContained.fails = False


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[WarmRuntimes]:
    pool = WarmRuntimes(2, tmp_path / "warm", asyncio.Semaphore(1), idle_s=0)
    pool.idle.set()
    yield pool
    await pool.close()
    assert all(each.is_stopped or each.session for each in FakeContained.made if each.is_started)
    assert not (tmp_path / "warm").exists()


def session(number: int, folder: Path, **given: Any) -> SessionFolders:
    return SessionFolders(f"s-{number}", folder / f"s-{number}", folder / "logs", **given)


async def started(count: int) -> list[FakeContained]:
    await until(lambda: len([each for each in FakeContained.made if each.is_started]) >= count)
    return FakeContained.made


async def test_the_next_session_of_the_same_kind_gets_a_started_runtime(
    pool: WarmRuntimes, tmp_path: Path
) -> None:
    assert await pool.take(SPEC, session(1, tmp_path)) is None
    (warm,) = await started(1)
    taken: object = await pool.take(SPEC, session(2, tmp_path))
    assert taken is warm and warm.session == "s-2"
    assert warm.folders is not None and warm.folders.root.parent.parent == tmp_path / "warm"


async def test_one_runtime_never_serves_two_sessions(pool: WarmRuntimes, tmp_path: Path) -> None:
    await pool.take(SPEC, session(1, tmp_path))
    await started(1)
    first: object = await pool.take(SPEC, session(2, tmp_path))
    await started(2)
    second: object = await pool.take(SPEC, session(3, tmp_path))
    assert first is not None and second is not None and first is not second


@pytest.mark.parametrize("spec", [OTHER, SPEC])
async def test_a_session_that_asks_for_anything_else_starts_its_own(
    pool: WarmRuntimes, tmp_path: Path, spec: Spec
) -> None:
    """Another image, or the same with another folder below the workspace."""
    await pool.take(SPEC, session(1, tmp_path))
    await started(1)
    base = tmp_path if spec is SPEC else None
    assert await pool.take(spec, session(2, tmp_path, base=base)) is None


async def test_other_programs_are_something_else(pool: WarmRuntimes, tmp_path: Path) -> None:
    await pool.take(SPEC, session(1, tmp_path))
    await started(1)
    programs = (Program("pi", tmp_path),)
    assert await pool.take(SPEC, session(2, tmp_path, programs=programs)) is None


async def test_there_are_never_more_than_the_config_says(pool: WarmRuntimes, tmp_path: Path) -> None:
    for number in range(6):
        await pool.take(OTHER if number % 2 else SPEC, session(number, tmp_path))
        await asyncio.sleep(0.01)
    waiting = [each for each in FakeContained.made if each.is_started and not each.is_stopped and not each.session]
    assert len(waiting) <= 2


async def test_one_that_died_while_it_waited_is_ended_and_not_given(pool: WarmRuntimes, tmp_path: Path) -> None:
    await pool.take(SPEC, session(1, tmp_path))
    (warm,) = await started(1)
    warm.is_dead = True
    assert await pool.take(SPEC, session(2, tmp_path)) is None
    assert warm.is_stopped


async def test_a_start_that_fails_is_no_failure_of_a_session(pool: WarmRuntimes, tmp_path: Path) -> None:
    FakeContained.fails = True
    await pool.take(SPEC, session(1, tmp_path))
    await until(lambda: bool(FakeContained.made) and FakeContained.made[0].is_stopped)
    assert await pool.take(SPEC, session(2, tmp_path)) is None


async def test_a_runtime_that_contains_nothing_is_not_kept(pool: WarmRuntimes, tmp_path: Path) -> None:
    await pool.take(Spec(name=f"{__name__}:FakeOpen"), session(1, tmp_path))
    await asyncio.sleep(0.01)
    assert FakeContained.made == []


async def test_what_the_last_sessions_asked_for_replaces_the_rest(pool: WarmRuntimes, tmp_path: Path) -> None:
    for number in range(2):
        await pool.take(SPEC, session(number, tmp_path))
    await started(2)
    for number in range(2, 4):
        assert await pool.take(OTHER, session(number, tmp_path)) is None
    made = await started(4)
    assert [each.image for each in made if not each.is_stopped] == ["other", "other"]


async def test_a_start_waits_for_a_worker_of_init(tmp_path: Path) -> None:
    workers = asyncio.Semaphore(1)
    pool = WarmRuntimes(1, tmp_path / "warm", workers, idle_s=0)
    pool.idle.set()
    async with workers:
        await pool.take(SPEC, session(1, tmp_path))
        await asyncio.sleep(0.01)
        assert FakeContained.made == []
    await started(1)
    await pool.close()


async def test_a_node_that_has_enough_to_do_starts_none(pool: WarmRuntimes, tmp_path: Path) -> None:
    pool.idle.clear()
    await pool.take(SPEC, session(1, tmp_path))
    await asyncio.sleep(0.01)
    assert FakeContained.made == []
    pool.idle.set()
    await started(1)


async def test_the_default_size_starts_nothing(tmp_path: Path) -> None:
    pool = WarmRuntimes(0, tmp_path / "warm", asyncio.Semaphore(1))
    assert await pool.take(SPEC, session(1, tmp_path)) is None
    await asyncio.sleep(0.01)
    assert FakeContained.made == []
    await pool.close()
