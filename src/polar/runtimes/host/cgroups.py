"""Control groups: the kernel enforces a session's limits.

In cgroup v1 each controller has its own tree, and groups are created at its top, under `polar`. In cgroup v2 there
is a single tree: groups are created beside the node's own group, in the nearest folder above it that the node may
write to. A group's path names the node that created it, so that what a dead node left can be found.
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
from polar.runtimes.host.processes import is_dead_owner, owner, owner_scope
from polar.runtimes.options import DEFAULT_PIDS, Limits

MOUNT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
FOLDER = "polar"
CONTROLLERS = {"cpus": "cpu", "memory_bytes": "memory", "pids": "pids"}
"""The controller of each limit; none limits the disk."""
PERIOD_US = 100_000
UNUSED_ID = 65533
"""An id that no user has."""
SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
POLL_S = 0.01
REMOVE_LIMIT_S = 30.0


class Hierarchy:
    """Where groups can be created on this machine."""

    def __init__(self, mount: Path = MOUNT, self_path: Path = SELF) -> None:
        self._mount = mount
        self.is_single = (mount / "cgroup.controllers").exists()
        self._parents = self._single_parent(self_path) if self.is_single else self._parent_by_controller()

    def _parent_by_controller(self) -> dict[str, Path]:
        found = {name: self._mount / name for name in CONTROLLERS.values()}
        return {name: path for name, path in found.items() if _may_make(path / FOLDER)}

    def _single_parent(self, self_path: Path) -> dict[str, Path]:
        """A group that holds processes cannot enable controllers for groups below, except the topmost."""
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
        """Why this machine cannot enforce the limits, and the fix; empty: it can."""
        asked = [CONTROLLERS[name] for name in limits.asked if name in CONTROLLERS]
        missing = [name for name in asked if name not in self._parents]
        if not missing:
            return ""
        problem = f"cannot create a control group for {' or '.join(missing)} here"
        if self.is_single:
            return f"{problem}: run the node as root, or as a systemd service with Delegate=yes"
        folders = " ".join(str(self._mount / name / FOLDER) for name in CONTROLLERS.values())
        return (
            f"{problem}: run the node as root, or as root `mkdir -p {folders}` and chown them to the node's user"
        )

    def folders(self, wanted: set[str]) -> dict[str, Path]:
        """By controller, the folder of this node's groups."""
        node = f"{FOLDER}/{_node_name()}"
        made = {name: path / node for name, path in self._parents.items() if name in wanted}
        # A v2 tree beside the v1 trees enforces no limit, but can kill a group at once.
        if not self.is_single and _may_make(self._mount / "unified" / FOLDER):
            made["unified"] = self._mount / "unified" / node
        return made

    def switch_on(self, folder: Path, wanted: set[str]) -> None:
        """In the single tree each group enables the controllers of the groups directly below it."""
        top = next(path for path in self._parents.values())
        for path in (top, folder.parent, folder):
            path.mkdir(exist_ok=True)
            (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))

    def left_behind(self) -> list[Path]:
        """Folders of dead nodes that we may remove."""
        tops = {path / FOLDER for path in self._parents.values()} | {self._mount / "unified" / FOLDER}
        nodes = [node for top in tops if top.is_dir() for node in top.iterdir() if node.is_dir()]
        return [node for node in nodes if _is_dead(node.name) and os.access(node, os.W_OK)]


class Cgroup:
    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    @classmethod
    def create(cls, name: str, limits: Limits, hierarchy: Hierarchy | None = None) -> Cgroup:
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
            raise RuntimeFailure(f"cannot create a control group for the limits: {error}") from error
        return group

    def entering(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """A command that joins the group and then executes `argv`."""
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
    def is_readable(self) -> bool:
        """Whether the node can read the kernel's counters."""
        return bool(self._folders)

    def memory_kills(self) -> int:
        """How many processes the kernel has killed at the memory limit."""
        for file in ("memory.oom_control", "memory.events"):
            with suppress(OSError, KeyError):
                if found := re.search(
                    r"^oom_kill (\d+)$", (self._folders["memory"] / file).read_text(), re.MULTILINE
                ):
                    return int(found[1])
        return 0

    def kill(self) -> None:
        for path in self._paths():
            if (path / "cgroup.kill").exists():
                with suppress(OSError):
                    (path / "cgroup.kill").write_text("1")
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Its processes must be dead or dying; waits for those that are dying."""
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
        if file in SWAP and not path.exists():  # a kernel without swap
            return
        path.write_text(value)

    def _close(self) -> None:
        """If the node is root, so is the session by its id, and would own these files: in a user namespace of its
        own it could mount them and raise its limits."""
        if os.geteuid() != 0:
            return
        for path in self._paths():
            for file in (path, *path.iterdir()):
                with suppress(OSError):  # the root of a user namespace may have no other id
                    os.chown(file, UNUSED_ID, UNUSED_ID)

    def _remove_now(self) -> list[Path]:
        """Returns what could not be removed yet."""
        left = [path for path in self._paths() if not _is_removed(path)]
        for path in self._paths():
            with suppress(OSError):  # other sessions of the node have groups in it
                path.parent.rmdir()
        return left


def with_default_pids(limits: Limits) -> Limits:
    """Adds the default limit of processes if the task sets none and this machine can enforce it."""
    if limits.pids is not None or Hierarchy().lacking(Limits(pids=DEFAULT_PIDS)):
        return limits
    return limits.model_copy(update={"pids": DEFAULT_PIDS})


async def sweep(hierarchy: Hierarchy | None = None) -> int:
    """Ends and removes what dead nodes left. Returns the number of groups."""
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
    except FileNotFoundError:  # another starting node sweeps at the same time
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
    """An owner's name is valid only in its own pid namespace."""
    return f"{owner_scope().rpartition('.')[2]}-{owner()}"


def _is_dead(node_name: str) -> bool:
    namespace, _, name = node_name.partition("-")
    return namespace == owner_scope().rpartition(".")[2] and is_dead_owner(name)


def _may_make(path: Path) -> bool:
    """Whether the group exists and is writable, or could be created."""
    nearest = path if path.is_dir() else path.parent
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def _is_removed(path: Path) -> bool:
    """Removes it with the groups that a session created in it."""
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
