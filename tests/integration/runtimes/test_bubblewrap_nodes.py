"""Bubblewrap sessions and their node: a killed node leaves nothing, and a node need not be root."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from bubblewrap_bench import Network, Sessions, alive_in, needs_bubblewrap, network_of, sh

import polar
from polar.runtimes.bubblewrap.bwrap_command import left_behind
from polar.runtimes.bubblewrap.runtime import BubblewrapRuntime
from polar.runtimes.host.cgroups import Hierarchy
from polar.runtimes.options import Limits
from skips import needs_kernel
from waiting import until

pytestmark = needs_bubblewrap

NO_CGROUPS = Hierarchy().lacking(Limits(pids=1))

NODE = """
import asyncio, sys
from pathlib import Path
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime

async def main(folder):
    runtime = BubblewrapRuntime(BubblewrapOptions())
    await runtime.start(SessionFolders("s-1", folder / "root", folder / "logs"))
    network = await runtime.exec(Command(("readlink", "/proc/self/ns/net")))
    print(network.stdout_tail.strip(), flush=True)
    endless = Command(("sh", "-c", "setsid sleep 1000 & sleep 1000"))
    await asyncio.gather(*(runtime.exec(endless) for _ in range(3)))

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    made = Sessions(tmp_path)
    yield made
    await made.stop()


class DoomedNode:
    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.network = Network(self._process.stdout.readline().strip())

    def groups(self) -> list[Path]:
        """Control groups, once it is dead."""
        return [path for path in Hierarchy().left_behind() if f"-{self._process.pid}." in path.name]

    def die(self) -> None:
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


async def test_a_node_that_is_killed_takes_its_sessions_along(tmp_path: Path) -> None:
    node = DoomedNode(tmp_path)
    await until(lambda: len(alive_in(node.network)) >= 10)
    node.die()
    await until(lambda: not alive_in(node.network))
    await BubblewrapRuntime.sweep()
    assert node.groups() == []


@needs_kernel(NO_CGROUPS)
async def test_what_a_killed_node_leaves_is_counted(tmp_path: Path) -> None:
    node = DoomedNode(tmp_path)
    node.die()
    assert node.groups()
    assert await BubblewrapRuntime.sweep() >= 1
    assert node.groups() == []


@pytest.mark.parametrize("delay_ms", [0, 5, 10, 15])
async def test_nor_does_a_node_leave_anything_that_is_killed_at_a_bad_moment(
    tmp_path: Path, delay_ms: int
) -> None:
    """Bubblewrap that loses its parent in its first moments leaves its tree alive; the holder ends it."""
    node = DoomedNode(tmp_path)
    await asyncio.sleep(delay_ms / 1000)
    node.die()
    await until(lambda: not alive_in(node.network))


async def test_nor_what_has_shed_all_its_ties(tmp_path: Path) -> None:
    """The first process of a command can be made from inside to outlive bubblewrap and clear its environment."""
    node = DoomedNode(tmp_path)
    target = ("--target", str(min(alive_in(node.network))))
    hidden = await asyncio.create_subprocess_exec(
        *("nsenter", *target, "--user", "--preserve-credentials", "--net", "sleep", "1000"),
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    await until(lambda: hidden.pid in alive_in(node.network))
    node.die()
    await until(lambda: not alive_in(node.network))
    assert await hidden.wait() == -signal.SIGKILL


@pytest.mark.parametrize("delay_ms", [0, 5, 10, 15])
async def test_what_a_node_and_its_namespace_holders_leave_when_killed_together_is_swept(
    tmp_path: Path, delay_ms: int
) -> None:
    node = DoomedNode(tmp_path)
    holder = min(alive_in(node.network))
    await asyncio.sleep(delay_ms / 1000)
    os.kill(holder, signal.SIGKILL)
    node.die()
    await BubblewrapRuntime.sweep()
    assert not alive_in(node.network)
    assert not [seen for seen in left_behind() if str(tmp_path).encode() in seen]


async def test_a_sweep_leaves_the_living_alone(sessions: Sessions) -> None:
    runtime = await sessions.start()
    await BubblewrapRuntime.sweep()
    assert (await runtime.exec(sh("echo here"))).stdout_tail == "here\n"
    assert len(alive_in(await network_of(runtime))) == 1


async def test_two_runtimes_of_one_session_do_not_disturb_each_other(sessions: Sessions, tmp_path: Path) -> None:
    folders = sessions.folders()
    agent = await sessions.start(folders)
    evaluator = await sessions.start(
        msgspec.structs.replace(folders, root=tmp_path / "other", logs=tmp_path / "other-logs")
    )
    await evaluator.stop()
    assert (await agent.exec(sh("echo here"))).stdout_tail == "here\n"


USER = """
import asyncio, os, sys
from pathlib import Path
os.umask(0o077)
from polar.runtimes.bubblewrap import runtime as bubblewrap
from polar.runtimes.base import Command, Program, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime

bubblewrap.DEFAULT_PIDS = 60

async def main(folder):
    assert os.geteuid() != 0
    assert await BubblewrapRuntime.lacking() == ""
    (folder / "base").mkdir()
    (folder / "base" / "old").write_text("old")
    for limits in ({}, {"disk_bytes": "16MiB"}):
        runtime = BubblewrapRuntime(BubblewrapOptions(limits=limits))
        programs = (Program("tool", folder / "base"),)
        await runtime.start(SessionFolders("s-1", folder / "root", folder / "logs", folder / "base", programs))
        script = "echo new >old; echo more >more; mkdir -m 000 closed; touch /usr/x /opt/polar/tool/x; id -u"
        finished = await runtime.exec(Command(("sh", "-c", script)))
        assert finished.stdout_tail == "0\\n", finished
        assert await runtime.get("old") == b"new\\n"
        await runtime.put("put", b"put")
        await runtime.fetch("more", folder / "out" / str(len(limits)), cap_bytes=1000)
        listener = await runtime.listener()
        reach = f": </dev/tcp/127.0.0.1/{listener.getsockname()[1]}"
        assert (await runtime.exec(Command(("bash", "-c", reach)))).exit_code == 0
        listener.close()
        many = "for i in $(seq 100); do sleep 1000 & done; echo all"
        assert (await runtime.exec(Command(("sh", "-c", many)))).stdout_tail == ""
        endless = asyncio.create_task(runtime.exec(Command(("sh", "-c", "setsid sleep 1000 & sleep 1000"))))
        await asyncio.sleep(0.02)
        await runtime.kill()
        await endless
        await runtime.stop()
        assert not (folder / "root").exists()
        assert [path.name for path in (folder / "base").iterdir()] == ["old"]
        assert (folder / "base" / "old").read_text() == "old"
    await BubblewrapRuntime.sweep()

asyncio.run(main(Path(sys.argv[1])))
"""


def a_python_for_all() -> str:
    """A Python of the same version that other users may run too."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"]
    is_open = [path for path in found if all(_is_open(part) for part in (Path(path), *Path(path).parents))]
    return is_open[0] if is_open else ""


def _is_open(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & 0o001)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are run by an ordinary user already")
@pytest.mark.skipif(not a_python_for_all(), reason="no Python of this version that every user may run")
def test_an_ordinary_user_can_do_the_same(tmp_path: Path) -> None:
    nobody = 65534
    folder = Path("/tmp") / f"polar-user-{os.getpid()}"  # pytest's own folders are closed to other users
    try:
        shutil.copytree(Path(polar.__file__).parent, folder / "src" / "polar")
        (folder / "home").mkdir()
        os.chown(folder / "home", nobody, nobody)
        packages = Path(msgspec.__file__).parent.parent
        done = subprocess.run(
            [a_python_for_all(), "-B", "-c", USER, str(folder / "home")],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": f"{folder}/src:{packages}"},
            user=nobody,
            group=nobody,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(folder)
