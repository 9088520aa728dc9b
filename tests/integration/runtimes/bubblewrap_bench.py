"""What tests of the bubblewrap runtime share: starting sessions, and the living processes in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from polar.runtimes.base import Command, Program, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from waiting import hang_limit

needs_bubblewrap = [pytest.mark.check, pytest.mark.usefixtures("bubblewrap")]


class Sessions:
    """Starts runtimes, each in folders of its own, and stops them all at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[BubblewrapRuntime] = []

    def folders(
        self, session_id: str = "s-1", base: Path | None = None, programs: tuple[Program, ...] = ()
    ) -> SessionFolders:
        folder = self._folder / session_id
        return SessionFolders(session_id, folder / "root", folder / "logs", base, programs)

    async def start(self, folders: SessionFolders | None = None, **options: Any) -> BubblewrapRuntime:
        runtime = BubblewrapRuntime(BubblewrapOptions(**options))
        self._started.append(runtime)
        await runtime.start(folders or self.folders())
        return runtime

    async def stop(self) -> None:
        for runtime in self._started:
            await runtime.stop()


def sh(script: str, **env: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script), env=env)


def bash(script: str) -> Command:
    """bash can open connections without another program."""
    return Command(argv=("bash", "-c", script))


class Network:
    """A session's network namespace: every process of the session is in it, and no other. It is held open, so that
    its number is not reused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._fd = -1
        self._fd = os.open(f"/proc/{min(alive_in(self))}/ns/net", os.O_RDONLY)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


async def network_of(runtime: BubblewrapRuntime) -> Network:
    return Network((await runtime.exec(sh("readlink /proc/self/ns/net"))).stdout_tail.strip())


def alive_in(network: Network) -> set[int]:
    """Process ids, zombies left out. The namespace holder is one of them until the session is stopped."""
    found = set[int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_inside = os.readlink(entry / "ns" / "net") == network.name
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if is_inside and state not in "ZX":
                found.add(int(entry.name))
    return found


async def begin(runtime: BubblewrapRuntime, script: str, ready: str = "ready") -> asyncio.Task[Any]:
    """Runs a script that writes the file `ready` once it is under way."""
    task = asyncio.create_task(runtime.exec(sh(script)))
    async with hang_limit():
        while not task.done():
            try:
                await runtime.get(ready)
                break
            except FileNotFoundError:
                await asyncio.sleep(0.01)
    return task
