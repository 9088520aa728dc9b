"""One command of a session in a cage of its own: a bubblewrap process that joins the keeper's namespaces.

A cage has its own process ids, ends with its command, and takes along what the command left in the background.
It holds no capability, and can make no user namespace to get one.

It is ended by killing the first process inside, whose id bubblewrap tells over a pipe: with that one the kernel
kills all others. Killing bubblewrap instead leaves the tree alive if it comes in its first moments; so the id is
waited for, and a start is never broken off.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.bubblewrap.namespace_holder_main import MARK
from polar.runtimes.host.memory_file import memory_file
from polar.runtimes.host.processes import PROC, home, owner, owner_lives
from polar.runtimes.host.spawn import Child
from polar.runtimes.host.system_calls import without_keys

KEY_LISTS = ("keys", "key-users")


def options(root: Path, env: dict[str, str], cwd: str, closed: Iterable[str]) -> Iterator[str]:
    """`closed`: files of /proc that are covered."""
    yield from ("--die-with-parent", "--new-session", "--clearenv")
    yield from ("--unshare-user", "--disable-userns", "--cap-drop", "ALL")
    yield from (
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-cgroup-try",
        "--unshare-uts",
        "--hostname",
        "polar",
    )
    yield from ("--bind", str(root / "root"), "/")
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    for path in closed:
        yield from ("--ro-bind", "/dev/null", path)
    yield from ("--dev", "/dev", "--bind", str(root / "disk" / "shm"), "/dev/shm", "--remount-ro", "/dev")
    for name, value in env.items():
        yield from ("--setenv", name, value)
    yield from ("--chdir", cwd)


def closed_to_others() -> list[str]:
    """Files of /proc that only root may open. Where the node is root, so is the session by its id, and by that
    alone some of them tell about the kernel's memory; and those that list the keys of the node's user. All others
    can be read and not written. Asked once per session: the listing holds every process of the machine."""
    with os.scandir(PROC) as entries:
        return [
            entry.path
            for entry in entries
            if not entry.name.isdigit()
            and entry.is_file(follow_symlinks=False)
            and (entry.name in KEY_LISTS or not entry.stat().st_mode & stat.S_IROTH)
        ]


class BwrapCommand:
    """The options go over a file and not over the command line, which all users of the node can read."""

    def __init__(self, options: Iterator[str]) -> None:
        self._options_fd = memory_file(b"".join(os.fsencode(option) + b"\0" for option in options))
        self._filter_fd = memory_file(without_keys())
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._told = b""
        self._first_fd = -1
        self._is_known = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._hear)

    @property
    def arguments(self) -> tuple[str, ...]:
        filtered = ("--seccomp", str(self._filter_fd))
        return ("--args", str(self._options_fd), "--json-status-fd", str(self._write_fd), *filtered)

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return (self._options_fd, self._filter_fd, self._write_fd)

    @property
    def was_entered(self) -> bool:
        """Whether the command itself began: else what bubblewrap says is about itself."""
        return b"exit-code" in self._told

    def began(self, pid: int) -> None:
        """Only the process has the pipe now: it ends with it."""
        os.close(self._write_fd)
        self._write_fd = -1

    async def end(self) -> None:
        """Returns when nothing is alive inside. Bubblewrap itself may have ended before: it does so with its
        command, and leaves the rest to die."""
        await self._is_known.wait()
        if self._first_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)
        await self._is_empty.wait()

    async def break_off(self, process: Child | None) -> None:
        if process is None:
            self.began(0)
        await self.end()

    def close(self) -> None:
        """When it is empty and bubblewrap has ended."""
        self._hear()
        self._loop.remove_reader(self._read_fd)
        for descriptor in (self._options_fd, self._filter_fd, self._read_fd, self._write_fd, self._first_fd):
            if descriptor >= 0:
                os.close(descriptor)

    def _hear(self) -> None:
        try:
            part = os.read(self._read_fd, 65536)
        except BlockingIOError:
            return
        self._told += part
        if not part:
            self._loop.remove_reader(self._read_fd)
        line, end, _ = self._told.partition(b"\n")
        if not self._is_known.is_set() and (end or not part):
            self._watch(json.loads(line)["child-pid"] if end else 0)

    def _watch(self, first: int) -> None:
        """The kernel lets the first process go when all others inside are gone."""
        self._is_known.set()
        try:
            self._first_fd = os.pidfd_open(first) if first else -1
        except ProcessLookupError:
            pass
        if self._first_fd >= 0:
            self._loop.add_reader(self._first_fd, self._went)
        else:
            self._is_empty.set()

    def _went(self) -> None:
        self._loop.remove_reader(self._first_fd)
        self._is_empty.set()


def mark(root: Path) -> dict[str, str]:
    return {MARK: f"{home()}/{owner()}/{root}"}


def left_behind(root: Path | None = None) -> set[bytes]:
    """Marks of processes whose node is dead; with a `root`, of all that were started for that place. As they stand
    in an environment."""
    return {seen for seen in _marks() if _is_left_behind(seen, root)}


def _marks() -> set[bytes]:
    found = set[bytes]()
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            with suppress(OSError):
                environment = b"\0" + Path(entry.path, "environ").read_bytes()
                found.update(re.findall(rb"\0(" + MARK.encode() + rb"=[^\0]+\0)", environment))
    return found


def _is_left_behind(seen: bytes, root: Path | None) -> bool:
    """Seen from where the mark was made only: in another pid namespace the same id is another process."""
    machine, _, rest = os.fsdecode(seen[len(MARK) + 1 : -1]).partition("/")
    node, _, place = rest.partition("/")
    if machine != home() or not re.fullmatch(r"\d+\.\d+", node):
        return False
    return not owner_lives(node) or place == str(root)


def refuse_nul(words: Iterable[str], program: str) -> None:
    """In the file of options it would begin another one."""
    if any("\0" in word for word in words):
        raise RuntimeFailure(f"cannot start {program!r}: embedded null byte")
