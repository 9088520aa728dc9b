"""The actor of a machine, without Ray: what it starts, what it says of a node that does not run, how it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from polar import child_processes
from polar.back_off import BackOff
from polar.cluster.ray import machine_actor
from polar.cluster.ray.machine_actor import MachineActor
from polar.cluster.ray.plan import FleetPlan
from waiting import until

WAIT = "import time; time.sleep(1000)"


def fake_polar(folder: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a node runs these lines instead, and leaves its id, its arguments and its token."""
    code = folder / "fake_polar.py"
    note = f"open({str(folder)!r} + f'/{{os.getpid()}}.pid', 'w').write(os.environ['POLAR_NODE_TOKEN'])"
    code.write_text(f"import os, sys\n{note}\n{lines}\n")
    wrapper = folder / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} {code}\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(child_processes.sys, "executable", str(wrapper))
    monkeypatch.setattr(child_processes, "BackOff", lambda **_: BackOff(first_s=0.01, longest_s=0.01))


def pids(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pid") if path.read_text()]


def plan(folder: Path, nodes: int = 1) -> FleetPlan:
    return FleetPlan(
        "http://server", "the token", nodes, folder=str(folder / "work"), config="[pools]\nrunning = 2\n"
    )


async def test_it_keeps_its_nodes_running_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_polar(tmp_path, WAIT, monkeypatch)
    actor = MachineActor(plan(tmp_path, nodes=2), "abc")
    await until(lambda: len(pids(tmp_path)) == 2)
    os.kill(pids(tmp_path)[0], 9)
    await until(lambda: len(pids(tmp_path)) == 3)
    status = await actor.status()
    assert (status.pid, status.nodes, status.problem) == (os.getpid(), 2, "")
    assert {path.read_text() for path in tmp_path.glob("*.pid")} == {"the token"}
    config = tmp_path / "work/abc/polar.toml"
    assert config.read_text() == "[pools]\nrunning = 2\n"
    assert config.parent.stat().st_mode & 0o077 == 0, "others cannot read what a node keeps"
    await actor.stop()
    assert [pid for pid in pids(tmp_path) if Path(f"/proc/{pid}").exists()] == []


async def test_a_node_that_refuses_to_run_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_polar(tmp_path, "print('polar: wrong node token'); sys.exit(2)", monkeypatch)
    actor = MachineActor(plan(tmp_path), "abc")
    await until(lambda: actor._serving.done())  # pyright: ignore[reportPrivateUsage]
    status = await actor.status()
    assert "wrong node token" in status.problem and "polar cluster ray down" in status.problem
    assert len(pids(tmp_path)) == 1
    await actor.stop()


async def test_a_node_that_crashes_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_polar(tmp_path, "raise RuntimeError('a bug')", monkeypatch)
    monkeypatch.setattr(machine_actor, "BackOff", lambda **_: BackOff(first_s=0.01, longest_s=0.01))
    actor = MachineActor(plan(tmp_path), "abc")
    await until(lambda: len(pids(tmp_path)) > child_processes.QUICK_DEATHS)
    assert "RuntimeError: a bug" in (await actor.status()).problem
    await actor.stop()
    assert [pid for pid in pids(tmp_path) if Path(f"/proc/{pid}").exists()] == []


async def test_nodes_that_run_again_are_no_problem_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that had no disk for a while, say: `status` tells what is, and the next pause is short again."""
    monkeypatch.setattr(machine_actor, "BackOff", lambda **_: BackOff(first_s=0.01, longest_s=0.01))
    monkeypatch.setattr(machine_actor, "WELL_S", 0.3)
    fake_polar(tmp_path, f"if not os.path.exists({str(tmp_path / 'well')!r}): 1 / 0\n{WAIT}", monkeypatch)
    actor = MachineActor(plan(tmp_path), "abc")
    await until(lambda: "ZeroDivisionError" in actor._problem)  # pyright: ignore[reportPrivateUsage]
    (tmp_path / "well").touch()
    await until(lambda: not actor._problem)  # pyright: ignore[reportPrivateUsage]
    assert (await actor.status()).problem == ""
    waiting = [task for task in asyncio.all_tasks() if "Event.wait" in repr(task.get_coro())]
    assert waiting == [], "no pause is left behind"
    await actor.stop()


async def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    actor = MachineActor(plan(tmp_path), "abc")
    await until(lambda: actor._serving.done())  # pyright: ignore[reportPrivateUsage]
    assert "work" in (await actor.status()).problem
    await actor.stop()
