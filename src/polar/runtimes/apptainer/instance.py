"""One Apptainer instance: how it is started, found again and ended.

An instance is three kinds of processes: a watcher on the node whose title bears the instance's name, the init of
a pid namespace below it with all that runs inside, and, for an image file, the programs that serve its file
system. The watcher leads a session of its own, so it names the whole family; when init dies, all inside are dead.

All that Apptainer writes down about an instance lies in the session's own folder, so none of it can stay behind.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import select
import shutil
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.host.processes import PROC, Family, end, owner, owner_lives
from polar.runtimes.host.spawn import complaint_of
from polar.runtimes.host.threads import in_thread

OWN_PREFIX = "/opt/apptainer/usr/bin"
"""Where the project's own installer puts the program."""
TITLE = re.compile(rb"Apptainer instance: \S+ \[(?P<name>polar\.\d+\.\d+\.[^\]]+)\]")
"""What a watcher calls itself; the two numbers are the node's `owner`."""
UNMARKED = b"POLAR_PLACE=\0"
"""A marker that nobody carries: the family is named by its leaders."""

NODES_OWN_PROC = ("acpi", "bus", "fs", "irq", "mtrr", "pressure", "scsi", "sys", "sysrq-trigger")
"""Of /proc, what belongs to the node: a node that runs as root could be changed there from inside."""

GET_PARENT = 0xB702
"""Asks a namespace for the one it stands in."""
START_SCRIPT = "#!/bin/sh\nexit 0\n"
"""An instance runs this and lives on. A plain folder has none; what an image would start is not wanted either."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


CLOSED_CALLS = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["add_key", "keyctl", "request_key", "setns"], "action": "SCMP_ACT_ERRNO"}],
}
"""System calls that a session does without: the node's keyring is inherited, and keys are their user's in every
namespace."""
CLOSE_USER_SPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/user", os.O_RDONLY), 0x10000000) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
with open("/proc/sys/user/max_user_namespaces", "w") as most:
    most.write("0")
"""
"""The number is that of the user namespace one is in. Without another program in between: an id that is not root's
would lose with it the right to write."""


class Mount(msgspec.Struct, frozen=True):
    source: Path
    target: str
    read_only: bool = False

    def spelled(self) -> str:
        fields = [f"source={self.source}", f"destination={self.target}", *(["ro"] if self.read_only else [])]
        return ",".join(["type=bind", *(f'"{field}"' for field in fields)])


def find_program(chosen: str | None = None) -> str | None:
    """What was chosen, else what is on the PATH, else what the project's own installer has made."""
    return shutil.which(chosen or "apptainer") or (None if chosen else shutil.which(f"{OWN_PREFIX}/apptainer"))


def containing(mounts: Iterable[Mount], *, network: bool) -> tuple[str, ...]:
    """Flags of a container that sees of the node only what is mounted: no home, no devices but the plain ones, no
    /sys, none of its processes; without `network`, nothing but a loopback of its own. Root is root of a user
    namespace only, and has no capabilities."""
    covers = (Mount(PROC / name, f"/proc/{name}", True) for name in NODES_OWN_PROC if (PROC / name).exists())
    return (
        *("--userns", "--containall", "--cleanenv", "--no-privs", "--hostname", "polar"),
        *("--no-mount", "sys,bind-paths"),  # bind-paths: files of the node's own /etc, writable to a root inside
        *(() if network else ("--net", "--network", "none")),
        *(word for mount in (*covers, *mounts) for word in ("--mount", mount.spelled())),
    )


def filtered(state: Path) -> tuple[str, ...]:
    """Flags that close system calls to a command that enters an instance. Its init, which is Apptainer's own and
    runs nothing of the image, does not live with them."""
    path = state / "system-calls.json"
    if not path.exists():
        path.write_bytes(msgspec.json.encode(CLOSED_CALLS))
    return ("--security", f"seccomp:{path}")


async def close_user_spaces(pid: int) -> None:
    """No user namespace can be made inside any more. In one of its own a session could mount the machine's control
    groups, which belong to its id where the node is root, and lift its limits."""
    if complaint := await complaint_of(sys.executable, "-I", "-S", "-c", CLOSE_USER_SPACES, str(pid)):
        raise RuntimeFailure(f"user namespaces cannot be closed to the instance: {complaint}")


def make_layer(layer: Path) -> None:
    """The writable layer over the image, with what an instance needs and an image may lack."""
    actions, etc = layer / "upper/.singularity.d/actions", layer / "upper/etc"
    for folder in (actions, etc, layer / "work"):
        folder.mkdir(parents=True, mode=0o755)
    (actions / "start").write_text(START_SCRIPT)
    (actions / "start").chmod(0o755)
    (etc / "hosts").write_text(HOSTS)


def unprivileged() -> tuple[str, ...]:
    """What comes before Apptainer's own command line where the node is root: to Apptainer, and inside, it is an
    ordinary user then. As root it would move instances into control groups of its own, out of the session's, and
    leave them behind."""
    if os.geteuid() != 0:
        return ()
    nobody = pwd.getpwnam("nobody")
    return ("unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--")


class InstanceEntry(msgspec.Struct, frozen=True):
    argv: tuple[str, ...] = ()
    """Comes before the command line of who enters an instance."""
    fds: tuple[int, ...] = ()
    """Passed on to it."""


class Init(msgspec.Struct, frozen=True):
    """The first process inside, held so that its id cannot become another's."""

    pid: int
    fd: int
    outside: int | None
    """The user namespace that `unprivileged` has made and the instance's own stands in; None: the node's."""

    @property
    def lives(self) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return not poll.poll(0)

    @contextmanager
    def entry(self) -> Generator[InstanceEntry]:
        """A descriptor of its own: the instance may be ended, and its descriptors closed, meanwhile."""
        if self.outside is None:
            yield InstanceEntry()
            return
        fd = os.dup(self.outside)
        try:
            yield InstanceEntry(("nsenter", f"--user=/proc/self/fd/{fd}", "--preserve-credentials", "--"), (fd,))
        finally:
            os.close(fd)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def close(self) -> None:
        for fd in (self.fd, self.outside):
            if fd is not None:
                os.close(fd)


def hold(pid_file: Path) -> Init:
    with ExitStack() as opened:

        def keep(fd: int) -> int:
            opened.callback(os.close, fd)
            return fd

        try:
            pid = int(pid_file.read_text())
            init = keep(os.pidfd_open(pid))
            outside = keep(_parent_namespace(pid)) if unprivileged() else None
        except (OSError, ValueError) as error:
            raise RuntimeFailure(f"the instance ended as soon as it was started: {error}") from error
        opened.pop_all()
    return Init(pid, init, outside)


def _parent_namespace(pid: int) -> int:
    own = os.open(PROC / str(pid) / "ns/user", os.O_RDONLY)
    try:
        return fcntl.ioctl(own, GET_PARENT)
    finally:
        os.close(own)


def instance_name(folders: str) -> str:
    return f"polar.{owner()}.{folders}"


async def end_instance(folders: str, clients: Iterable[int] = ()) -> None:
    """Ends the instance of a place, whoever owns it and at whatever point of its life it is, and the commands that
    are on their way into it. Looked for until there is none: a start that is under way makes its watcher at some
    time."""
    leaders = frozenset(clients)
    while leaders := leaders | await in_thread(_watching, folders):
        await end(Family(UNMARKED, leaders), grace_s=0)
        leaders = frozenset[int]()


async def is_watched(folders: str) -> bool:
    """Without a watcher nobody is let into an instance, and what is left of it dies."""
    return bool(await in_thread(_watching, folders))


async def sweep_instances() -> int:
    """Ends the instances of nodes that are dead. How many that were."""
    names = (_parts(name) for name in (await in_thread(_watchers)).values())
    left = {folders for node, folders in names if not owner_lives(node)}
    for folders in left:
        await end_instance(folders)
    return len(left)


def _parts(name: str) -> tuple[str, str]:
    """Owner and place."""
    _, pid, started_at, folders = name.split(".", 3)
    return f"{pid}.{started_at}", folders


def _watching(folders: str) -> frozenset[int]:
    return frozenset(pid for pid, name in _watchers().items() if _parts(name)[1] == folders)


def _watchers() -> dict[int, str]:
    """Process ids and the names of their instances, of this pid namespace: in another one an owner's id is
    another process."""
    found: dict[int, str] = {}
    with suppress(OSError):
        here = os.readlink(PROC / "self/ns/pid")
        for entry in PROC.iterdir():
            if entry.name.isdigit() and (name := _instance_of(entry, here)):
                found[int(entry.name)] = name
    return found


def _instance_of(process: Path, namespace: str) -> str:
    with suppress(OSError):  # it ended just now, or it is another user's
        title = TITLE.match((process / "cmdline").read_bytes())
        if title and os.readlink(process / "ns/pid") == namespace:
            return title["name"].decode()
    return ""
