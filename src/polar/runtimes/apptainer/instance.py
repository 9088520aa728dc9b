"""One Apptainer instance: how it is started, found and ended.

An instance has three kinds of processes: a watcher on the node with the instance's name in its title, the init of
a pid namespace with all that runs inside, and, for an image file, the programs that serve its file system. The
watcher leads a process session of its own, which identifies all of them; when init dies, everything inside dies.

All files that Apptainer writes about an instance are in the session's own folder, so none stays behind.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.host.descriptors import closing_fd, is_readable
from polar.runtimes.host.processes import PROC, Family, end, is_dead_owner, owner, pid_namespace, process_ids
from polar.runtimes.host.seccomp_profile import denying_profile
from polar.runtimes.host.spawn import complaint_of
from polar.runtimes.host.threads import in_thread

OWN_PREFIX = "/opt/apptainer/usr/bin"
"""Where `make apptainer` puts the program."""
TITLE = re.compile(rb"Apptainer instance: \S+ \[(?P<name>polar\.\d+\.\d+\.[^\]]+)\]")
"""A watcher's title; the two numbers are the node's `owner`."""
UNMARKED = b"POLAR_PLACE=\0"
"""A marker that no process has: the family is identified by its leaders."""

NODES_OWN_PROC = ("acpi", "bus", "fs", "irq", "mtrr", "pressure", "scsi", "sys", "sysrq-trigger")
"""Parts of /proc through which a session could change a node that runs as root."""

GET_PARENT = 0xB702
"""The ioctl that returns a namespace's parent."""
START_SCRIPT = "#!/bin/sh\nexit 0\n"
"""Replaces the image's own start script; a plain folder has none. The instance lives on after it."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
FORBID_USER_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/user", os.O_RDONLY), 0x10000000) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
with open("/proc/sys/user/max_user_namespaces", "w") as most:
    most.write("0")
"""
"""Sets the limit of the user namespace that it joins. It must not execute another program in between: a user other
than root would lose the right to write."""


class Mount(msgspec.Struct, frozen=True):
    source: Path
    target: str
    read_only: bool = False

    def as_option(self) -> str:
        fields = [f"source={self.source}", f"destination={self.target}", *(["ro"] if self.read_only else [])]
        return ",".join(["type=bind", *(f'"{field}"' for field in fields)])


def find_program(chosen: str | None = None) -> str | None:
    """The chosen program, else the one on PATH, else the one that `make apptainer` installed."""
    return shutil.which(chosen or "apptainer") or (None if chosen else shutil.which(f"{OWN_PREFIX}/apptainer"))


def containment_flags(mounts: Iterable[Mount], *, network: bool) -> tuple[str, ...]:
    """Flags of a container that sees only what is mounted: not the node's home, /sys, processes or devices except
    the plain ones; without `network`, only a loopback of its own. Root inside is root of a user namespace, without
    capabilities."""
    covers = (Mount(PROC / name, f"/proc/{name}", True) for name in NODES_OWN_PROC if (PROC / name).exists())
    return (
        *("--userns", "--containall", "--cleanenv", "--no-privs", "--hostname", "polar"),
        *("--no-mount", "sys,bind-paths"),  # bind-paths: files of the node's /etc, which root inside could write
        *(() if network else ("--net", "--network", "none")),
        *(word for mount in (*covers, *mounts) for word in ("--mount", mount.as_option())),
    )


def filter_flags(state: Path) -> tuple[str, ...]:
    """Flags that forbid system calls to a command in an instance. The instance's init, a program of Apptainer,
    does not work with them."""
    path = state / "system-calls.json"
    if not path.exists():
        path.write_bytes(msgspec.json.encode(denying_profile()))
    return ("--security", f"seccomp:{path}")


async def forbid_user_namespaces(pid: int) -> None:
    """In a user namespace of its own a session could mount the machine's control groups, which belong to its id if
    the node is root, and raise its limits."""
    if complaint := await complaint_of(sys.executable, "-I", "-S", "-c", FORBID_USER_NAMESPACES, str(pid)):
        raise RuntimeFailure(f"cannot forbid user namespaces in the instance: {complaint}")


def make_layer(layer: Path) -> None:
    """Creates the writable layer over the image, with files that an instance needs and an image may lack."""
    actions, etc = layer / "upper/.singularity.d/actions", layer / "upper/etc"
    for folder in (actions, etc, layer / "work"):
        folder.mkdir(parents=True, mode=0o755)
    (actions / "start").write_text(START_SCRIPT)
    (actions / "start").chmod(0o755)
    (etc / "hosts").write_text(HOSTS)


def unprivileged() -> tuple[str, ...]:
    """If the node is root, a prefix of Apptainer's command line that makes it an ordinary user. As root Apptainer
    would move instances out of the session's control group into its own, and leave them behind."""
    if os.geteuid() != 0:
        return ()
    nobody = pwd.getpwnam("nobody")
    return ("unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--")


class InstanceEntry(msgspec.Struct, frozen=True):
    """How a command enters an instance."""

    argv: tuple[str, ...] = ()
    """Prefix of its command line."""
    fds: tuple[int, ...] = ()
    """Descriptors to pass to it."""


class Init(msgspec.Struct, frozen=True):
    """The first process inside, with a pidfd so that its id cannot be reused."""

    pid: int
    fd: int
    outside: int | None
    """The user namespace that `unprivileged` created, the parent of the instance's own; None: the node's."""

    @property
    def lives(self) -> bool:
        return not is_readable(self.fd)

    @contextmanager
    def entry(self) -> Generator[InstanceEntry]:
        """Duplicates the descriptor: the instance may be ended and its descriptors closed meanwhile."""
        if self.outside is None:
            yield InstanceEntry()
            return
        with closing_fd(os.dup(self.outside)) as fd:
            yield InstanceEntry(("nsenter", f"--user=/proc/self/fd/{fd}", "--preserve-credentials", "--"), (fd,))

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
            raise RuntimeFailure(f"the instance ended right after its start: {error}") from error
        opened.pop_all()
    return Init(pid, init, outside)


def _parent_namespace(pid: int) -> int:
    with closing_fd(os.open(PROC / str(pid) / "ns/user", os.O_RDONLY)) as own:
        return fcntl.ioctl(own, GET_PARENT)


def instance_name(instance_id: str) -> str:
    return f"polar.{owner()}.{instance_id}"


async def end_instance(instance_id: str, clients: Iterable[int] = ()) -> None:
    """Ends the instance of a session, whichever node owns it, and the commands that are entering it. Repeats until
    none is found: a start that is under way may still create a watcher."""
    leaders = frozenset(clients)
    while leaders := leaders | await in_thread(_watching, instance_id):
        await end(Family(UNMARKED, leaders), grace_s=0)
        leaders = frozenset[int]()


async def is_watched(instance_id: str) -> bool:
    """Without a watcher no command can enter an instance, and what is left of it dies."""
    return bool(await in_thread(_watching, instance_id))


async def sweep_instances() -> int:
    """Ends the instances of dead nodes. Returns how many."""
    names = (_parts(name) for name in (await in_thread(_watchers)).values())
    left = {instance_id for node, instance_id in names if is_dead_owner(node)}
    for instance_id in left:
        await end_instance(instance_id)
    return len(left)


def _parts(name: str) -> tuple[str, str]:
    """Owner and instance id."""
    _, pid, started_at, instance_id = name.split(".", 3)
    return f"{pid}.{started_at}", instance_id


def _watching(instance_id: str) -> frozenset[int]:
    return frozenset(pid for pid, name in _watchers().items() if _parts(name)[1] == instance_id)


def _watchers() -> dict[int, str]:
    """Process ids and instance names, in our pid namespace: in another one an owner's id is a different
    process."""
    here = pid_namespace("self")
    if not here:
        return {}
    named = ((pid, _title_of(pid)) for pid in process_ids())
    return {pid: title["name"].decode() for pid, title in named if title and pid_namespace(pid) == here}


def _title_of(pid: int) -> re.Match[bytes] | None:
    try:
        return TITLE.match((PROC / str(pid) / "cmdline").read_bytes())
    except OSError:  # it has ended, or is another user's
        return None
