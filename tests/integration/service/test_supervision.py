"""Children of a command: started again when they die, given up when that is no use, never left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from polar import child_processes as processes
from polar.back_off import BackOff
from polar.child_processes import ChildProgram, ChildRefused, running
from waiting import until


class Script:
    """Stands for the `polar` command: each start runs these lines and leaves its id."""

    def __init__(self, folder: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.deaths = 0
        code = folder / "fake_polar.py"
        code.write_text(
            f"import os, pathlib\npathlib.Path({str(folder)!r}, f'{{os.getpid()}}.pid').touch()\n{lines}\n"
        )
        wrapper = folder / "python"
        wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} {code}\n")
        wrapper.chmod(0o755)
        monkeypatch.setattr(processes.sys, "executable", str(wrapper))
        monkeypatch.setattr(processes, "BackOff", lambda **_: BackOff(first_s=0.01, longest_s=0.01))

    def program(self) -> ChildProgram:
        return ChildProgram("child", lambda: [], self.folder / "child.log", self._died)

    async def _died(self) -> None:
        self.deaths += 1

    def pids(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.pid")]

    def living(self) -> list[int]:
        return [pid for pid in self.pids() if Path(f"/proc/{pid}").exists()]


WAIT = "import time; time.sleep(1000)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


async def test_a_child_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, WAIT, monkeypatch)
    async with running(script.program()):
        await until(lambda: len(script.pids()) == 1)
        os.kill(script.pids()[0], 9)
        await until(lambda: len(script.pids()) == 2)
    assert script.deaths == 1, "the second was stopped"
    assert script.living() == []


async def test_several_are_stopped_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, WAIT, monkeypatch)
    async with running(script.program(), script.program(), script.program()):
        await until(lambda: len(script.pids()) == 3)
    assert (script.living(), script.deaths) == ([], 0)


async def test_one_that_refuses_breaks_the_body_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, "import sys; print('polar: no such engine'); sys.exit(2)", monkeypatch)
    with pytest.raises(ChildRefused, match="child does not run: no such engine"):
        async with running(script.program()):
            await asyncio.Event().wait()
    assert len(script.pids()) == 1


async def test_one_that_dies_at_once_every_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path, "raise RuntimeError('a bug')", monkeypatch)
    with pytest.raises(ChildRefused, match="RuntimeError: a bug"):
        async with running(script.program()):
            await asyncio.Event().wait()
    assert script.deaths == len(script.pids()) == processes.QUICK_DEATHS


async def test_one_that_was_steady_may_die_as_often_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STEADY_S", 0.0)
    script = Script(tmp_path, "raise RuntimeError('a bug')", monkeypatch)
    async with running(script.program()):
        await until(lambda: len(script.pids()) > processes.QUICK_DEATHS)
    assert script.living() == []


async def test_one_that_does_not_stop_is_killed_and_cleared_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    script = Script(tmp_path, DEAF, monkeypatch)
    async with running(script.program()):
        await until(lambda: len(script.pids()) == 1)
        await asyncio.sleep(0.2)  # until it is deaf
    assert (script.living(), script.deaths) == ([], 1)


async def test_an_error_of_the_body_comes_through_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path, WAIT, monkeypatch)
    with pytest.raises(ValueError, match="the body's"):
        async with running(script.program()):
            await until(lambda: len(script.pids()) == 1)
            raise ValueError("the body's own")
    assert script.living() == []


async def test_a_cancel_of_the_body_stops_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, WAIT, monkeypatch)

    async def supervise() -> None:
        async with running(script.program()):
            await asyncio.Event().wait()

    task = asyncio.create_task(supervise())
    await until(lambda: len(script.pids()) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.living() == []
