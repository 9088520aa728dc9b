"""One command of a session: a bubblewrap process that joins the namespaces of the session's namespace holder.

Each command has its own process ids. When it ends, the kernel kills what it left in the background. It has no
capabilities, and cannot create a user namespace to get some.

A command is ended by killing the first process inside, whose id bubblewrap writes to a pipe: the kernel kills all
others with it. Killing bubblewrap itself in its first moments would leave the tree alive, so `end` waits for the
id and a start is never interrupted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.bubblewrap.namespace_holder_main import MARKER
from polar.runtimes.host.descriptors import memory_file
from polar.runtimes.host.processes import PROC, environment_of, is_dead_owner, owner, owner_scope, process_ids
from polar.runtimes.host.spawn import Child
from polar.runtimes.host.system_calls import session_filter

RESOLVER_FILE = "/etc/resolv.conf"
KEY_LISTS = ("keys", "key-users")


def options(
    root: Path, env: dict[str, str], cwd: str, covers: Mapping[str, str], *, name_servers: bool = False
) -> Iterator[str]:
    """`covers`: files to cover, and the node's files that do. `name_servers`: show those of the node."""
    yield from ("--die-with-parent", "--new-session", "--clearenv")
    yield from ("--unshare-user", "--disable-userns", "--cap-drop", "ALL")
    yield from ("--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try", "--unshare-uts")
    yield from ("--hostname", "polar")
    yield from ("--bind", str(root / "root"), "/")
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    for path, cover in covers.items():
        yield from ("--ro-bind", cover, path)
    yield from ("--dev", "/dev", "--bind", str(root / "disk" / "shm"), "/dev/shm", "--remount-ro", "/dev")
    if name_servers:
        yield from ("--ro-bind-try", RESOLVER_FILE, RESOLVER_FILE)
    for name, value in env.items():
        yield from ("--setenv", name, value)
    yield from ("--chdir", cwd)


def hidden_files() -> list[str]:
    """Files of /proc that only root may open, and those that list the keys of the node's user. If the node is
    root, so is the session by its id, and could read about the kernel's memory there. Listed once per session,
    because /proc has an entry for every process of the machine."""
    with os.scandir(PROC) as entries:
        return [
            entry.path
            for entry in entries
            if not entry.name.isdigit()
            and entry.is_file(follow_symlinks=False)
            and (entry.name in KEY_LISTS or not entry.stat().st_mode & stat.S_IROTH)
        ]


class BwrapCommand:
    """Passes the options in a file, because all users of the node can read its command lines."""

    def __init__(self, options: Iterator[str]) -> None:
        self._options_fd = memory_file(b"".join(os.fsencode(option) + b"\0" for option in options))
        self._filter_fd = memory_file(session_filter())
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._status = b""
        self._first_fd = -1
        self._is_known = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._read_status)

    @property
    def arguments(self) -> tuple[str, ...]:
        filtered = ("--seccomp", str(self._filter_fd))
        return ("--args", str(self._options_fd), "--json-status-fd", str(self._write_fd), *filtered)

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return (self._options_fd, self._filter_fd, self._write_fd)

    @property
    def was_entered(self) -> bool:
        """Whether the command itself started; if not, the output is an error of bubblewrap."""
        return b"exit-code" in self._status

    def began(self, pid: int) -> None:
        """Closes our end of the status pipe, so that it ends with the process."""
        os.close(self._write_fd)
        self._write_fd = -1

    async def end(self) -> None:
        """Returns when nothing is alive inside. Bubblewrap itself may have ended before: it ends with its command
        and leaves the rest to the kernel."""
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
        """Called when nothing is alive inside and bubblewrap has ended."""
        self._read_status()
        self._loop.remove_reader(self._read_fd)
        for descriptor in (self._options_fd, self._filter_fd, self._read_fd, self._write_fd, self._first_fd):
            if descriptor >= 0:
                os.close(descriptor)

    def _read_status(self) -> None:
        try:
            part = os.read(self._read_fd, 65536)
        except BlockingIOError:
            return
        self._status += part
        if not part:
            self._loop.remove_reader(self._read_fd)
        line, end, _ = self._status.partition(b"\n")
        if not self._is_known.is_set() and (end or not part):
            self._watch(json.loads(line)["child-pid"] if end else 0)

    def _watch(self, first: int) -> None:
        """The kernel reaps the first process after all others inside."""
        self._is_known.set()
        try:
            self._first_fd = os.pidfd_open(first) if first else -1
        except ProcessLookupError:
            pass
        if self._first_fd >= 0:
            self._loop.add_reader(self._first_fd, self._first_ended)
        else:
            self._is_empty.set()

    def _first_ended(self) -> None:
        self._loop.remove_reader(self._first_fd)
        self._is_empty.set()


def marker(root: Path) -> dict[str, str]:
    return {MARKER: f"{owner_scope()}/{owner()}/{root}"}


def left_behind(root: Path | None = None) -> set[bytes]:
    """Markers of processes whose node is dead, as they are in an environment. With `root`, also those of all
    processes that were started for that session folder."""
    pattern = re.compile(rb"\0(" + MARKER.encode() + rb"=[^\0]+\0)")
    markers = {found for pid in process_ids() for found in pattern.findall(environment_of(pid))}
    return {found for found in markers if _is_left_behind(found, root)}


def _is_left_behind(found: bytes, root: Path | None) -> bool:
    """An owner's name is valid only in the scope in which the marker was made."""
    scope, _, rest = os.fsdecode(found[len(MARKER) + 1 : -1]).partition("/")
    node, _, folder = rest.partition("/")
    if scope != owner_scope() or not re.fullmatch(r"\d+\.\d+", node):
        return False
    return is_dead_owner(node) or folder == str(root)


def refuse_nul(words: Iterable[str], program: str) -> None:
    """A NUL would start another option in the file of options."""
    if any("\0" in word for word in words):
        raise RuntimeFailure(f"cannot start {program!r}: embedded null byte")
