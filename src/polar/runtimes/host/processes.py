"""Which processes belong to a place, and their end.

A process belongs when the marker stands in its environment, when it is in the process group or session of a
command, or when its parent belongs. The marker finds those that made a session of their own or became
daemons; one that also cleared its environment and outlived its parent is out of reach, and wants a runtime that
contains. All this is read from /proc; elsewhere than on Linux only the process groups are ended.

Each also carries who owns it: the node's process. When a node is killed its processes stay; whoever comes next
sweeps them away.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterable
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
"""How long SIGKILL is repeated: a process that outlives this hangs in the kernel."""


class Family(msgspec.Struct, frozen=True):
    """What the processes of a command, or of a whole place, have in common."""

    marker: bytes
    """Bytes that follow a NUL in the environment of each."""
    leaders: frozenset[int]
    """Process ids of commands that run; each leads a process group and a session."""
    gone_leaders: frozenset[int] = frozenset()
    """The same of commands that ended; their children may live on in the group."""


class _Process(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    group: int
    session: int


async def end(family: Family, *, grace_s: float) -> None:
    """Returns when none of the family is alive: asked first, killed after `grace_s`."""
    known = await in_thread(find, family)
    signal_all(known, signal.SIGTERM)
    if known := await _outlive(family, known, grace_s):
        if left := await _outlive(family, known, KILL_LIMIT_S, again=signal.SIGKILL):
            raise RuntimeFailure(f"processes that cannot be killed: {', '.join(map(str, sorted(left)))}")


async def _outlive(
    family: Family, known: set[int], limit_s: float, *, again: signal.Signals | None = None
) -> set[int]:
    """Who is alive at the end of the limit; none as soon as two looks agree on it, because a process that is
    just replacing its program shows no environment. Sends `again` at each look."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    clean_looks = 0
    while clean_looks < 2:
        known = await in_thread(find, family, known)
        clean_looks = 0 if known else clean_looks + 1
        if known and loop.time() >= deadline:
            return known
        if again is not None:
            signal_all(known, again)
        await asyncio.sleep(POLL_S)
    return set()


def home() -> str:
    """This boot of this machine and the pid namespace within: where an owner's name means something."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}.{os.stat(PROC / 'self' / 'ns' / 'pid').st_ino}"
    except OSError:
        return ""


def owner() -> str:
    """This process, told apart from any that gets its id later."""
    return _owner_named(os.getpid())


@cache
def _owner_named(pid: int) -> str:
    return f"{pid}.{_started_at(pid)}"


async def sweep_orphans(*, grace_s: float = 0.0) -> int:
    """Ends all processes on this machine whose owner is dead. How many owners that were."""
    dead = await in_thread(_dead_owners)
    for name in dead:
        await end(Family(f"{OWNER}={name}\0".encode(), leaders=frozenset()), grace_s=grace_s)
    return len(dead)


def _dead_owners() -> set[str]:
    """Seen from our own namespace only: in another one the same id is another process."""
    here = _namespace("self")
    if here is None:
        return set()
    owners = {_owner_of(process.pid) for process in _table() if _namespace(str(process.pid)) == here}
    return {name for name in owners if name and not owner_lives(name)}


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(PROC / pid / "ns" / "pid")
    except OSError:  # it ended just now, it is another user's, or there is no /proc
        return None


def _owner_of(pid: int) -> str:
    with suppress(OSError):
        environment = b"\0" + (PROC / str(pid) / "environ").read_bytes()
        if found := re.search(rb"\0" + OWNER.encode() + rb"=(\d+\.\d+)\0", environment):
            return found[1].decode()
    return ""


def owner_lives(name: str) -> bool:
    """Whether the process that `owner` named is alive. In another pid namespace the same id is another process."""
    pid, _, started_at = name.partition(".")
    return _started_at(int(pid)) == int(started_at)


def _started_at(pid: int) -> int:
    """Clock ticks since the machine started; 0 where there is no such process, a zombie being none."""
    with suppress(OSError):
        fields = _stat(PROC / str(pid))
        if fields[0] not in (b"Z", b"X"):
            return int(fields[19])
    return 0


def find(family: Family, known: Iterable[int] = ()) -> set[int]:
    """Process ids of the family, zombies left out: they are dead and wait only for their parent. `known` ones
    stay in it while they live: the death of its parent can hide a process that had no other tie."""
    if not (PROC / "self" / "environ").exists():
        return {leader for leader in family.leaders | family.gone_leaders if _group_lives(leader)}
    table = {process.pid: process for process in _table()}
    # The id of an ended command names its group while a member lives; a process with that very id is another's.
    leaders = family.leaders | (family.gone_leaders - table.keys())
    members = {pid for pid, process in table.items() if _is_member(process, leaders, family.marker)}
    members |= table.keys() & set(known)
    while more := {p.pid for p in table.values() if p.parent in members} - members:
        members |= more
    return members - {os.getpid()}


def _is_member(process: _Process, leaders: frozenset[int], marker: bytes) -> bool:
    return process.group in leaders or process.session in leaders or _is_marked(process.pid, marker)


def _is_marked(pid: int, marker: bytes) -> bool:
    try:
        return b"\0" + marker in b"\0" + (PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it ended just now, or it is another user's
        return False


def _table() -> Iterable[_Process]:
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = _stat(Path(entry.path))
                if fields[0] not in (b"Z", b"X"):
                    parent, group, session = map(int, fields[1:4])
                    yield _Process(int(entry.name), parent, group, session)


def _stat(process: Path) -> list[bytes]:
    """From the state on: the name before it stands in brackets and may itself hold spaces and brackets."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


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
