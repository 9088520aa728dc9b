"""Control groups in v1 and v2: where they are created, what is written there, and what is swept."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.host.cgroups import MOUNT, Cgroup, Hierarchy, sweep
from polar.runtimes.host.processes import owner, owner_scope
from polar.runtimes.options import Limits
from skips import needs_kernel
from waiting import until

NODE = f"{owner_scope().rpartition('.')[2]}-{owner()}"


def limits(**asked: Any) -> Limits:
    return Limits.model_validate(asked)


ALL = limits(cpus=1.5, memory_bytes="64MiB", pids=50)


def fake(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


@pytest.fixture
def single(tmp_path: Path) -> tuple[Path, Path]:
    """A cgroup v2 machine, its mount and /proc/self/cgroup: a shell in its scope, in a slice of the user."""
    mount = fake(tmp_path / "cgroup", cgroup_controllers="cpuset cpu io memory pids\n", cgroup_procs="1\n2\n")
    kept = {"cgroup_type": "domain\n", "cgroup_controllers": "cpu memory pids\n"}
    fake(mount / "user.slice" / "app.slice", cgroup_procs="", **kept)
    fake(mount / "user.slice" / "app.slice" / "shell.scope", cgroup_procs="77\n", **kept)
    (tmp_path / "self").write_text("0::/user.slice/app.slice/shell.scope\n")
    return mount, tmp_path / "self"


# cgroup v2


def test_in_the_single_tree_groups_are_made_beside_the_nodes_own(single: tuple[Path, Path]) -> None:
    mount, _ = single
    group = Cgroup.create("s-1", ALL, Hierarchy(*single))

    slice_ = mount / "user.slice" / "app.slice"
    made = slice_ / "polar" / NODE / "s-1"
    assert (made / "cpu.max").read_text() == "150000 100000"
    assert (made / "memory.max").read_text() == str(64 * 2**20)
    assert (made / "pids.max").read_text() == "50"
    for above in (slice_, slice_ / "polar", slice_ / "polar" / NODE):
        assert (above / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert str(made / "cgroup.procs") in group.entering(("true",))


def test_a_folder_with_processes_of_its_own_cannot_hold_limited_groups(single: tuple[Path, Path]) -> None:
    mount, _ = single
    slice_ = mount / "user.slice" / "app.slice"
    (slice_ / "cgroup.procs").write_text("78\n")
    fake(mount / "user.slice", cgroup_procs="", cgroup_type="domain\n", cgroup_controllers="memory pids\n")

    Cgroup.create("s-1", limits(pids=5), Hierarchy(*single))

    assert (mount / "user.slice" / "polar" / NODE / "s-1" / "pids.max").read_text() == "5"
    assert "cannot create a control group for cpu" in Hierarchy(*single).lacking(ALL)


def test_only_what_is_asked_for_is_switched_on(single: tuple[Path, Path]) -> None:
    Cgroup.create("s-1", limits(pids=5), Hierarchy(*single))
    slice_ = single[0] / "user.slice" / "app.slice"
    assert (slice_ / "cgroup.subtree_control").read_text() == "+pids"
    assert not (slice_ / "polar" / NODE / "s-1" / "memory.max").exists()


def test_kills_for_want_of_memory_are_counted(single: tuple[Path, Path]) -> None:
    group = Cgroup.create("s-1", ALL, Hierarchy(*single))
    made = single[0] / "user.slice" / "app.slice" / "polar" / NODE / "s-1"
    assert group.memory_kills() == 0
    (made / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert group.memory_kills() == 2


# cgroup v1


def test_in_the_old_trees_each_controller_has_its_own_folder(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "pids"):
        (tmp_path / name).mkdir()
    group = Cgroup.create("s-1", ALL, Hierarchy(tmp_path))

    def of(controller: str, file: str) -> str:
        return (tmp_path / controller / "polar" / NODE / "s-1" / file).read_text()

    assert (of("cpu", "cpu.cfs_quota_us"), of("cpu", "cpu.cfs_period_us")) == ("150000", "100000")
    assert of("memory", "memory.limit_in_bytes") == str(64 * 2**20)
    assert of("pids", "pids.max") == "50"
    assert len([word for word in group.entering(("true",)) if word.endswith("cgroup.procs")]) == 3


def test_a_machine_without_control_groups_says_what_helps(tmp_path: Path) -> None:
    hierarchy = Hierarchy(tmp_path)
    assert hierarchy.lacking(limits()) == ""
    assert hierarchy.lacking(limits(disk_bytes="1GiB")) == ""
    assert "memory" in hierarchy.lacking(limits(memory_bytes="1GiB"))
    assert "run the node as root" in hierarchy.lacking(ALL)
    with pytest.raises(RuntimeFailure, match="run the node as root"):
        Cgroup.create("s-1", ALL, hierarchy)


# Real control groups

WHY_NOT = Hierarchy().lacking(ALL)
real = needs_kernel(WHY_NOT)


@pytest.fixture
async def group() -> AsyncIterator[Cgroup]:
    made = Cgroup.create(f"test-{os.getpid()}", ALL)
    yield made
    made.kill()
    await made.remove()


def run(group: Cgroup, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(group.entering(("sh", "-c", script)), capture_output=True, text=True)


@real
def test_a_command_becomes_itself_in_the_group(group: Cgroup) -> None:
    done = run(group, 'cat /proc/self/cgroup; echo "$0 $1"; exit 7')
    assert done.returncode == 7
    assert done.stdout.count(f"/polar/{NODE}/test-{os.getpid()}") >= 3


@real
def test_words_stay_whole(group: Cgroup) -> None:
    words = ("printf", "%s|", "a b", "", "$HOME", "'", "x\ny")
    done = subprocess.run(group.entering(words), capture_output=True, text=True)
    assert done.stdout == "a b||$HOME|'|x\ny|"


@real
def test_processes_are_counted(group: Cgroup) -> None:
    done = run(group, "for i in $(seq 60); do sleep 1000 >/dev/null 2>&1 & done; echo all")
    group.kill()
    assert "all" not in done.stdout
    assert "fork" in done.stderr.lower()


@real
def test_memory_is_counted(group: Cgroup) -> None:
    assert run(group, "head -c 200000000 /dev/zero | tail").returncode in (137, -signal.SIGKILL)
    assert group.memory_kills() >= 1


@real
async def test_all_are_killed_and_the_group_is_removed() -> None:
    group = Cgroup.create(f"test-{os.getpid()}-kill", limits(pids=20))
    script = "setsid sleep 1000 & setsid sleep 1000 & wait"
    process = await asyncio.create_subprocess_exec(*group.entering(("sh", "-c", script)))
    await until(lambda: len(group.pids()) >= 3)
    group.kill()
    await process.wait()
    await group.remove()
    assert group.pids() == set()
    assert not [p for p in Path("/sys/fs/cgroup").glob(f"*/polar/{NODE}/test-{os.getpid()}-kill")]


DOOMED = """
import os
from polar.runtimes.host.cgroups import Cgroup
from polar.runtimes.options import Limits

group = Cgroup.create("left", Limits(pids=9))
quiet = os.open(os.devnull, os.O_RDWR)
moves = [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (1, 2)]
os.posix_spawn("/bin/sh", group.entering(("setsid", "sleep", "1000")), os.environ, file_actions=moves)
while not group.pids():
    pass
print(*group.pids())
"""


@real
async def test_what_a_session_has_made_in_its_group_goes_with_it() -> None:
    group = Cgroup.create(f"test-{os.getpid()}-below", limits(pids=20))
    made = [*MOUNT.glob(f"*/polar/{NODE}/test-{os.getpid()}-below")]
    sleeper = await asyncio.create_subprocess_exec("sleep", "1000")
    for path in made:
        (path / "below").mkdir()
        (path / "below" / "cgroup.procs").write_text(str(sleeper.pid))
    assert made and group.pids() == {sleeper.pid}
    group.kill()
    await sleeper.wait()
    await group.remove()
    assert not any(path.exists() for path in made)


@real
@pytest.mark.skipif(os.geteuid() != 0, reason="only a node that is root gives root's id to its sessions")
def test_limits_do_not_belong_to_the_id_that_sessions_have(group: Cgroup) -> None:
    made = [*MOUNT.glob(f"*/polar/{NODE}/test-{os.getpid()}")]
    assert made
    assert all(path.stat().st_uid != 0 for folder in made for path in (folder, *folder.iterdir()))


@real
async def test_what_a_dead_node_left_is_swept_and_a_living_ones_is_not(group: Cgroup) -> None:
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", DOOMED, stdout=asyncio.subprocess.PIPE)
    said, _ = await node.communicate()
    left = said.decode().split()[0]
    assert is_alive(left)

    assert await sweep() >= 1

    assert not is_alive(left)
    assert run(group, "true").returncode == 0


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_names_that_are_no_nodes_are_left_alone(tmp_path: Path) -> None:
    for name in ("someone", "1-2", f"{owner_scope().rpartition('.')[2]}-x.y", "12-1.1"):
        (tmp_path / "pids" / "polar" / name).mkdir(parents=True)
    gone = tmp_path / "pids" / "polar" / f"{owner_scope().rpartition('.')[2]}-{os.getpid()}.1"
    gone.mkdir()
    assert Hierarchy(tmp_path).left_behind() == [gone]
