"""Which processes belong to a session, and how they are ended.

A process belongs to a session if the session's marker is in its environment, if it is in the process group or
session of a command, or if its parent belongs. The marker finds processes that called setsid or became daemons.
One that also cleared its environment and outlived its parent is not found: only a containing runtime ends it. All
this is read from /proc; on systems other than Linux only the process groups are ended.

Each process also carries its owner's name: the node's process. If a node is killed its processes stay, and the
next node to start ends them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.host.threads import in_thread

PROC = Path("/proc")
OWNER = "POLAR_OWNER"
POLL_S = 0.01
KILL_LIMIT_S = 30.0
"""How long SIGKILL is repeated: a process that survives this hangs in the kernel."""


class Family(msgspec.Struct, frozen=True):
    """What the processes of a command, or of a whole session, have in common."""

    marker: bytes
    """Bytes that follow a NUL in the environment of each."""
    leaders: frozenset[int] = frozenset()
    """Process ids of running commands; each leads a process group and a session."""
    gone_leaders: frozenset[int] = frozenset()
    """Process ids of commands that ended; their children may live on in the group."""


class _Process(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    group: int
    session: int


async def end(family: Family, *, grace_s: float) -> None:
    """Returns when none of the family is alive: sends SIGTERM, and SIGKILL after `grace_s`."""
    known = await in_thread(find, family)
    signal_all(known, signal.SIGTERM)
    if known := await _outlive(family, known, grace_s):
        if left := await _outlive(family, known, KILL_LIMIT_S, again=signal.SIGKILL):
            raise RuntimeFailure(f"cannot kill processes {', '.join(map(str, sorted(left)))}")


async def _outlive(
    family: Family, known: set[int], limit_s: float, *, again: signal.Signals | None = None
) -> set[int]:
    """Who is alive after `limit_s`. Returns early when two scans in a row find none: a process shows no
    environment while it replaces its program. Sends `again` after each scan."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    empty_scans = 0
    while empty_scans < 2:
        known = await in_thread(find, family, known)
        empty_scans = 0 if known else empty_scans + 1
        if known and loop.time() >= deadline:
            return known
        if again is not None:
            signal_all(known, again)
        await asyncio.sleep(POLL_S)
    return set()


def owner_scope() -> str:
    """Where an owner's name is valid: this boot of this machine, and the pid namespace."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}.{os.stat(PROC / 'self' / 'ns' / 'pid').st_ino}"
    except OSError:
        return ""


def owner() -> str:
    """The name of this process: its id and start time, so that no later process has the same name."""
    return _owner_named(os.getpid())


@cache
def _owner_named(pid: int) -> str:
    return f"{pid}.{_started_at(pid)}"


async def sweep_orphans(*, grace_s: float = 0.0) -> int:
    """Ends all processes on this machine whose owner is dead. Returns the number of dead owners."""
    dead = await in_thread(_dead_owners)
    for name in dead:
        await end(Family(f"{OWNER}={name}\0".encode()), grace_s=grace_s)
    return len(dead)


def _dead_owners() -> set[str]:
    """Of processes in our pid namespace: in another one the same id is a different process."""
    here = pid_namespace("self")
    if not here:
        return set()
    owners = {_owner_of(pid) for pid in process_ids() if pid_namespace(pid) == here}
    return {name for name in owners if is_dead_owner(name)}


def pid_namespace(pid: int | str) -> str:
    """Empty if the process has ended or is another user's, or if there is no /proc."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / "pid")
    except OSError:
        return ""


def _owner_of(pid: int) -> str:
    found = re.search(rb"\0" + OWNER.encode() + rb"=([^\0]+)\0", environment_of(pid))
    return found[1].decode(errors="replace") if found else ""


def is_dead_owner(name: str) -> bool:
    """Whether `name` was made by `owner` and its process is dead. Valid only in the same `owner_scope`."""
    return re.fullmatch(r"\d+\.\d+", name, re.ASCII) is not None and not owner_lives(name)


def owner_lives(name: str) -> bool:
    pid, _, started_at = name.partition(".")
    return _started_at(int(pid)) == int(started_at)


def _started_at(pid: int) -> int:
    """Clock ticks since boot; 0 if there is no such process, or if it is a zombie."""
    with suppress(OSError):
        fields = _stat(pid)
        if fields[0] not in (b"Z", b"X"):
            return int(fields[19])
    return 0


def find(family: Family, known: Iterable[int] = ()) -> set[int]:
    """Process ids of the family without zombies, which are dead and only wait for their parent. Living processes
    of `known` stay in it: the death of a parent can hide a process that had no other tie."""
    if not (PROC / "self" / "environ").exists():
        return {leader for leader in family.leaders | family.gone_leaders if _group_lives(leader)}
    table = {process.pid: process for process in _table()}
    # The id of an ended command names its group while a member lives; a process with that very id is unrelated.
    leaders = family.leaders | (family.gone_leaders - table.keys())
    members = {pid for pid, process in table.items() if _is_member(process, leaders, family.marker)}
    members |= table.keys() & set(known)
    while more := {p.pid for p in table.values() if p.parent in members} - members:
        members |= more
    return members - {os.getpid()}


def _is_member(process: _Process, leaders: frozenset[int], marker: bytes) -> bool:
    if process.group in leaders or process.session in leaders:
        return True
    return b"\0" + marker in environment_of(process.pid)


def environment_of(pid: int) -> bytes:
    """Each variable between two NULs; empty if the process has ended or is another user's."""
    try:
        return b"\0" + (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""


def process_ids() -> Iterator[int]:
    with os.scandir(PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _table() -> Iterable[_Process]:
    for pid in process_ids():
        with suppress(OSError):
            fields = _stat(pid)
            if fields[0] not in (b"Z", b"X"):
                yield _Process(pid, *map(int, fields[1:4]))


def _stat(pid: int) -> list[bytes]:
    """The fields after the process name, which is in brackets and may itself hold spaces and brackets."""
    return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def _group_lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except OSError:
        return False
    return True


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    on_linux = PROC.is_dir()
    for pid in pids:
        with suppress(OSError):
            (os.kill if on_linux else os.killpg)(pid, number)
