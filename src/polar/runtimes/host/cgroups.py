"""Limits of a session, held by the kernel: a control group of its own.

There are two kinds. In the old one each controller has a tree of its own, and groups are made at its top, under
`polar`. In the new one there is a single tree, of which a node has the part it was handed: groups are made
beside the node's own, in the nearest folder above it that the node may write to.

A group's path says which node made it. What a node that died has left is found by that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.host.processes import home, owner, owner_lives
from polar.runtimes.options import Limits

MOUNT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
FOLDER = "polar"
CONTROLLERS = {"cpus": "cpu", "memory_bytes": "memory", "pids": "pids"}
"""Which one holds which limit; a limit of disk is none of theirs."""
PERIOD_US = 100_000
NOBODYS = 65533
"""An id that no user has."""
SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
POLL_S = 0.01
REMOVE_LIMIT_S = 30.0


class Hierarchy:
    """Where groups are made on this machine."""

    def __init__(self, mount: Path = MOUNT, self_path: Path = SELF) -> None:
        self._mount = mount
        self.is_single = (mount / "cgroup.controllers").exists()
        self._homes = self._shared_home(self_path) if self.is_single else self._own_homes()

    def _own_homes(self) -> dict[str, Path]:
        found = {name: self._mount / name for name in CONTROLLERS.values()}
        return {name: path for name, path in found.items() if _may_make(path / FOLDER)}

    def _shared_home(self, self_path: Path) -> dict[str, Path]:
        """A group that holds processes can have no controllers for groups below; the topmost is exempt."""
        lines = self_path.read_text().splitlines()
        own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        above = [path for path in (self._mount / own).parents if path.is_relative_to(self._mount)]
        for path in above or [self._mount]:
            is_top = not (path / "cgroup.type").exists()
            if _may_make(path / FOLDER) and (is_top or not (path / "cgroup.procs").read_text().strip()):
                offered = (path / "cgroup.controllers").read_text().split()
                return {name: path for name in CONTROLLERS.values() if name in offered}
        return {}

    def lacking(self, limits: Limits) -> str:
        """Why the limits cannot be held on this machine, and what helps; empty: they can."""
        asked = [CONTROLLERS[name] for name in limits.asked if name in CONTROLLERS]
        missing = [name for name in asked if name not in self._homes]
        if not missing:
            return ""
        who = f"no control group for {' or '.join(missing)} can be made here"
        if self.is_single:
            return f"{who}: run the node as root, or as a service of systemd with Delegate=yes"
        folders = " ".join(str(self._mount / name / FOLDER) for name in CONTROLLERS.values())
        return f"{who}: run the node as root, or as root `mkdir -p {folders}` and make the node's user their owner"

    def folders(self, wanted: set[str]) -> dict[str, Path]:
        """By controller, where a node's groups are."""
        node = f"{FOLDER}/{_node_name()}"
        made = {name: path / node for name, path in self._homes.items() if name in wanted}
        # The single tree beside the old ones holds no limit, and kills a group at once.
        if not self.is_single and _may_make(self._mount / "unified" / FOLDER):
            made["unified"] = self._mount / "unified" / node
        return made

    def switch_on(self, folder: Path, wanted: set[str]) -> None:
        """In the single tree each group says which controllers those directly below have."""
        top = next(path for path in self._homes.values())
        for path in (top, folder.parent, folder):
            path.mkdir(exist_ok=True)
            (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))

    def left_behind(self) -> list[Path]:
        """Folders of nodes that are dead, as far as they are ours to remove."""
        tops = {path / FOLDER for path in self._homes.values()} | {self._mount / "unified" / FOLDER}
        nodes = [node for top in tops if top.is_dir() for node in top.iterdir() if node.is_dir()]
        return [node for node in nodes if _is_dead(node.name) and os.access(node, os.W_OK)]


class Cgroup:
    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    @classmethod
    def create(cls, name: str, limits: Limits, hierarchy: Hierarchy | None = None) -> Cgroup:
        """For the session `name` of this node."""
        hierarchy = hierarchy or Hierarchy()
        if reason := hierarchy.lacking(limits):
            raise RuntimeFailure(reason)
        wanted = {CONTROLLERS[limit] for limit in limits.asked if limit in CONTROLLERS}
        group = cls({key: path / name for key, path in hierarchy.folders(wanted).items()})
        try:
            for path in group._paths():
                path.parent.mkdir(parents=True, exist_ok=True)
                if hierarchy.is_single:
                    hierarchy.switch_on(path.parent, wanted)
                path.mkdir()
            for file, value in _settings(limits, is_single=hierarchy.is_single):
                controller = file.partition(".")[0]
                group._set(controller, file, value)
            group._close()
        except OSError as error:
            group._remove_now()
            raise RuntimeFailure(f"cannot make a control group for the limits: {error}") from error
        return group

    def entering(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """A command that becomes `argv` once it is in the group."""
        files = tuple(str(path / "cgroup.procs") for path in self._paths())
        joins = 'for _ in {}; do echo 0 >"$1" || exit 1; shift; done; exec "$@"'.format(" ".join("x" * len(files)))
        return ("/bin/sh", "-c", joins, "sh", *files, *argv) if files else argv

    def pids(self) -> set[int]:
        found = set[int]()
        for path in self._paths():
            with suppress(OSError):
                for file in path.rglob("cgroup.procs"):
                    found |= set(map(int, file.read_text().split()))
        return found

    @property
    def is_seen(self) -> bool:
        """Whether the node can read what the kernel counts in it."""
        return bool(self._folders)

    def memory_kills(self) -> int:
        """How many processes were killed because the memory had run out."""
        for file in ("memory.oom_control", "memory.events"):
            with suppress(OSError, KeyError):
                if found := re.search(
                    r"^oom_kill (\d+)$", (self._folders["memory"] / file).read_text(), re.MULTILINE
                ):
                    return int(found[1])
        return 0

    def kill(self) -> None:
        """All at once where the kernel offers it."""
        for path in self._paths():
            if (path / "cgroup.kill").exists():
                with suppress(OSError):
                    (path / "cgroup.kill").write_text("1")
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Its processes must be dead or dying: one that is just going still counts."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REMOVE_LIMIT_S
        while left := self._remove_now():
            if loop.time() > deadline:
                raise RuntimeFailure(f"cannot remove the control group {left[0]}")
            await asyncio.sleep(POLL_S)

    def _paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._folders.values()))

    def _set(self, controller: str, file: str, value: str) -> None:
        path = self._folders[controller] / file
        if file in SWAP and not path.exists():  # a kernel without swap has none to limit
            return
        path.write_text(value)

    def _close(self) -> None:
        """A session of a node that is root has its id, and would be the owner of these files: where it can make a
        user namespace it can mount them, and raise its limits."""
        if os.geteuid() != 0:
            return
        for path in self._paths():
            for file in (path, *path.iterdir()):
                with suppress(OSError):  # a root of a namespace may have no other id to give them to
                    os.chown(file, NOBODYS, NOBODYS)

    def _remove_now(self) -> list[Path]:
        """What is left."""
        left = [path for path in self._paths() if not _is_removed(path)]
        for path in self._paths():
            with suppress(OSError):  # other sessions of the node may have theirs in it
                path.parent.rmdir()
        return left


async def sweep(hierarchy: Hierarchy | None = None) -> int:
    """Ends and removes what dead nodes have left. How many groups that were."""
    swept = set[str]()
    for node in (hierarchy or Hierarchy()).left_behind():
        for path in _groups_in(node):
            group = Cgroup({"": path})
            group.kill()
            await group.remove()
            swept.add(f"{node.name}/{path.name}")
        with suppress(OSError):
            node.rmdir()
    return len(swept)


def _groups_in(node: Path) -> list[Path]:
    try:
        return [path for path in node.iterdir() if path.is_dir()]
    except FileNotFoundError:  # another node that starts now sweeps too
        return []


def _settings(limits: Limits, *, is_single: bool) -> list[tuple[str, str]]:
    quota_us = str(int((limits.cpus or 0) * PERIOD_US))
    memory = str(int(limits.memory_bytes or 0))
    found: list[tuple[str, str]] = []
    if limits.pids is not None:
        found.append(("pids.max", str(limits.pids)))
    if limits.cpus is not None:
        old = [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota_us)]
        found += [("cpu.max", f"{quota_us} {PERIOD_US}")] if is_single else old
    if limits.memory_bytes is not None:
        old = [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
        found += [("memory.max", memory), ("memory.swap.max", "0")] if is_single else old
    return found


def _node_name() -> str:
    """The owner's id means something in its own pid namespace only."""
    return f"{home().rpartition('.')[2]}-{owner()}"


def _is_dead(node_name: str) -> bool:
    namespace, _, name = node_name.partition("-")
    is_ours = namespace == home().rpartition(".")[2] and re.fullmatch(r"\d+\.\d+", name)
    return bool(is_ours) and not owner_lives(name)


def _may_make(path: Path) -> bool:
    """Without a group of that name, whether one could be made."""
    nearest = path if path.is_dir() else path.parent
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def _is_removed(path: Path) -> bool:
    """With the groups that a session may have made in it."""
    try:
        if not all([_is_removed(below) for below in path.iterdir() if below.is_dir()]):
            return False
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
