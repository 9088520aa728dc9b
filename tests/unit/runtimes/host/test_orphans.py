"""Processes of a killed node are found by their owner's name and ended; no others are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.host import processes
from polar.runtimes.host.processes import OWNER, owner, sweep_orphans
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from waiting import HANG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

Owned = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def owned() -> Iterator[Owned]:
    """Starts a process that carries an owner's mark."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "1000"], env={OWNER: mark}, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def dead_owner() -> str:
    """A process that has ended; its id may be reused, its start time may not."""
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{process.pid}.1"


async def test_what_a_dead_node_left_is_ended(owned: Owned) -> None:
    orphans = [owned(mark) for mark in [dead_owner()] * 2]
    await sweep_orphans()  # or a node of another test, which looks at the whole machine too
    assert [orphan.wait(HANG_S) for orphan in orphans] != [0, 0]


async def test_what_a_living_node_owns_is_left_alone(owned: Owned) -> None:
    mine = owned(owner())
    await sweep_orphans()
    assert mine.poll() is None


async def test_an_id_that_was_given_away_again_is_another_owner(owned: Owned) -> None:
    orphan = owned(f"{os.getpid()}.1")
    await sweep_orphans()
    assert orphan.wait(HANG_S) != 0


async def test_a_zombie_owns_nothing(owned: Owned) -> None:
    node = owned("")
    mark = f"{node.pid}.{processes._started_at(node.pid)}"  # pyright: ignore[reportPrivateUsage]
    orphan = owned(mark)
    await sweep_orphans()
    assert orphan.poll() is None
    node.kill()
    while b") Z " not in Path(f"/proc/{node.pid}/stat").read_bytes():
        pass
    await sweep_orphans()
    assert orphan.wait(HANG_S) != 0


@pytest.mark.parametrize("mark", ["", "x", "1.2.3", "-1.5", "12", "9" * 30])
async def test_a_mark_that_is_none_is_left_alone(owned: Owned, mark: str) -> None:
    stranger = owned(mark)
    await sweep_orphans()
    assert stranger.poll() is None


async def test_without_proc_there_is_nothing_to_sweep(
    owned: Owned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owned(dead_owner())
    monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
    assert await sweep_orphans() == 0


async def test_a_session_carries_the_node_that_runs_it(tmp_path: Path) -> None:
    runtime = LocalRuntime(LocalOptions())
    await runtime.start(SessionFolders(session_id="s", root=tmp_path / "root", logs=tmp_path / "logs"))
    finished = await runtime.exec(Command(argv=("sh", "-c", "echo $POLAR_OWNER"), env={OWNER: "1.1"}))
    await runtime.stop()
    assert finished.stdout_tail.strip() == owner()
    assert owner().split(".")[0] == str(os.getpid())
