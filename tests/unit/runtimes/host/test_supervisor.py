"""A command's supervisor: no process of the command escapes, and no other processes are scanned."""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.host import supervisor_main
from polar.runtimes.host.supervisor import Launcher, SupervisedCommand
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from waiting import hang_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a subreaper is Linux's")

DAEMON = "env -i setsid sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $! >>pids'"
"""Clears its environment, makes a session of its own, twice, and outlives its parents."""


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher()
    yield made
    await made.close()


@pytest.fixture
def sessions_folders(tmp_path: Path, launcher: Launcher) -> Callable[[str], SessionFolders]:
    return lambda name: SessionFolders(name, tmp_path / name, tmp_path / f"{name}-logs", launcher=launcher)


async def started(folders: SessionFolders, kill_grace_s: float = 0.3) -> LocalRuntime:
    runtime = LocalRuntime(LocalOptions(kill_grace_s=kill_grace_s))
    await runtime.start(folders)
    return runtime


def sh(script: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script))


def pids_in(folders: SessionFolders) -> list[int]:
    file = folders.root / "work" / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    return False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it waits for another process
            await asyncio.sleep(0.01)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Listings of the whole of /proc by the node."""
    seen: list[str] = []
    scandir, listdir = os.scandir, os.listdir

    def counted(listing: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def list_one(path: Any = ".") -> Any:
            if str(path) == "/proc":
                seen.append(str(path))
            return listing(path)

        return list_one

    monkeypatch.setattr(os, "scandir", counted(scandir))
    monkeypatch.setattr(os, "listdir", counted(listdir))
    return seen


async def test_the_node_never_lists_the_machines_processes(
    sessions_folders: Callable[[str], SessionFolders], scans: list[str]
) -> None:
    folders = sessions_folders("one")
    runtime = await started(folders)
    await runtime.exec(sh(DAEMON))
    running = asyncio.create_task(runtime.exec(sh("touch ready; sleep 1000")))
    await until((folders.root / "work" / "ready").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await runtime.kill()
    await runtime.stop()
    assert scans == []


@pytest.fixture
def bystanders() -> Iterator[list[int]]:
    started = [subprocess.Popen(["sleep", "1000"]) for _ in range(20)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def test_a_supervisor_reads_of_its_own_tree_only(bystanders: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counting(path: str, *arguments: Any) -> Any:
        opened.append(path)
        return builtins.open(path, *arguments)

    monkeypatch.setattr(supervisor_main, "open", counting, raising=False)
    below = supervisor_main.descendants()
    looked_at = {int(path.split("/")[2]) for path in opened}
    assert set(bystanders) <= below, "they are children of this very process"
    assert looked_at <= below | {os.getpid()}


def test_without_lists_of_children_the_tree_is_found_by_parents(bystanders: list[int]) -> None:
    by_parent = supervisor_main.children_by_parent()
    assert set(bystanders) <= by_parent[os.getpid()]


@pytest.mark.parametrize("how", ["kill", "stop", "cancel"])
async def test_a_daemon_without_environment_is_ended(
    sessions_folders: Callable[[str], SessionFolders], how: str
) -> None:
    folders = sessions_folders("one")
    runtime = await started(folders)
    running = asyncio.create_task(runtime.exec(sh(f"{DAEMON}; {'sleep 1000' if how == 'cancel' else ''}")))
    await until(lambda: pids_in(folders))
    (daemon,) = pids_in(folders)
    if how == "cancel":
        running.cancel()
    else:
        await running
        assert is_alive(daemon), "it may serve the next command"
        await (runtime.kill() if how == "kill" else runtime.stop())
    with suppress(asyncio.CancelledError):
        await running
    assert not is_alive(daemon)
    await runtime.stop()


async def test_many_commands_at_once_end_together(
    sessions_folders: Callable[[str], SessionFolders], scans: list[str]
) -> None:
    """Each supervisor ends its own tree, so the work is that of the trees."""
    many = [sessions_folders(f"s{number}") for number in range(8)]
    runtimes = [await started(folders) for folders in many]
    script = f"{DAEMON}; touch $$.ready; exec sleep 1000"
    running = [asyncio.create_task(runtime.exec(sh(script))) for runtime in runtimes for _ in range(8)]
    await until(lambda: all(len(list((folders.root / "work").glob("*.ready"))) == 8 for folders in many))
    daemons = [pid for folders in many for pid in pids_in(folders)]
    assert len(daemons) == 64 and all(map(is_alive, daemons))
    await asyncio.gather(*(runtime.stop() for runtime in runtimes))
    finished = await asyncio.gather(*running)
    assert {end.exit_code for end in finished} == {-signal.SIGTERM}
    assert not any(map(is_alive, daemons))
    assert scans == []


async def test_a_killed_supervisor_is_a_failure_and_its_tree_is_looked_for(
    sessions_folders: Callable[[str], SessionFolders],
) -> None:
    folders = sessions_folders("one")
    runtime = await started(folders)
    running = asyncio.create_task(
        runtime.exec(sh("echo $$ >pids; sleep 1000 & echo $! >>pids; echo $PPID >>pids; wait"))
    )
    await until(lambda: len(pids_in(folders)) == 3)
    *family, supervisor = pids_in(folders)
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(RuntimeFailure, match="supervisor was killed"):
        await running
    assert not any(map(is_alive, family))
    assert (await runtime.exec(sh("echo on"))).stdout_tail == "on\n"
    await runtime.stop()


async def test_a_killed_launcher_is_started_again(sessions_folders: Callable[[str], SessionFolders]) -> None:
    folders = sessions_folders("one")
    runtime = await started(folders)
    finished = await runtime.exec(sh("cut -d' ' -f4 /proc/$PPID/stat"))
    os.kill(int(finished.stdout_tail), signal.SIGKILL)
    await until(lambda: not is_alive(int(finished.stdout_tail)))
    assert (await runtime.exec(sh("echo on"))).stdout_tail == "on\n"
    await runtime.stop()


async def test_a_supervisor_ends_with_what_it_supervises(
    sessions_folders: Callable[[str], SessionFolders],
) -> None:
    folders = sessions_folders("one")
    runtime = await started(folders)
    supervisor = int((await runtime.exec(sh("echo $PPID"))).stdout_tail)
    await until(lambda: not is_alive(supervisor))
    await runtime.stop()


LIBC_SIGNALS = 0b11 << 31
"""The C library keeps signals 32 and 33 for itself, and no program can change them."""


async def test_signals_and_open_files_are_as_usual_for_a_command(
    sessions_folders: Callable[[str], SessionFolders],
) -> None:
    runtime = await started(sessions_folders("one"))
    was = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell does for a job in the background
    try:
        finished = await runtime.exec(sh("grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    finally:
        signal.signal(signal.SIGQUIT, was)
    changed = [int(line.split()[1], 16) & ~LIBC_SIGNALS for line in finished.stdout_tail.splitlines()]
    assert changed == [0, 0]
    open_files = await runtime.exec(sh("ls /proc/self/fd"))
    assert open_files.stdout_tail.split() == ["0", "1", "2", "3"], "the last is the listing's own"
    await runtime.stop()


NODE = """
import asyncio, sys
from pathlib import Path
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime

async def main():
    runtime = LocalRuntime(LocalOptions())
    await runtime.start(SessionFolders("s", Path(sys.argv[1]), Path(sys.argv[1] + "-logs")))
    await runtime.exec(Command(argv=("/bin/sh", "-c", sys.argv[2])))

asyncio.run(main())
"""


async def test_nothing_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    folders = SessionFolders("s", tmp_path / "root", tmp_path / "root-logs")
    script = f"{DAEMON}; echo $PPID $$ >>pids; trap '' TERM; touch ready; while :; do sleep 0.1; done"
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, str(folders.root), script)
    await until((folders.root / "work" / "ready").exists)
    family = pids_in(folders)
    assert len(family) == 3 and all(map(is_alive, family))
    node.kill()
    await node.wait()
    await until(lambda: not any(map(is_alive, family)))


@pytest.mark.parametrize("asked_before", [True, False])
async def test_a_supervisor_that_ends_as_it_is_asked_is_not_taken_for_killed(asked_before: bool) -> None:
    """Its last messages count, even if it ended before it read the node's request."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = SupervisedCommand(ours)
    ending = asyncio.create_task(command.end(0.1))
    if asked_before:
        await asyncio.sleep(0)
    theirs.send(b'{"exited": 0}')
    theirs.send(b'{"empty": true}')
    theirs.close()
    async with hang_limit():
        await ending
        assert await command.wait() == 0
