"""Folders of the node that a task mounts read-only: what it may ask for, and what the operator permits.

A source is resolved before it is compared with the permitted folders, so no link leads out of them, and the
resolved path is what a runtime mounts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec
from pydantic import Field, field_validator

from polar.runtimes.files.folders import mounted_below
from polar.types import Strict

SETTING = "permits.mounts"
OWN_TARGETS = ("/dev", "/home/polar", "/opt/polar", "/proc", "/sys", "/tmp")
"""Folders that a runtime fills itself."""


class ReadOnlyMount(Strict):
    """A folder of the node that a session may read and not write."""

    source: str = Field(min_length=1, max_length=4000)
    """A folder of the node; in a task file, relative to it."""
    target: str = Field(max_length=1000, pattern=r"^(/[\w@+-][\w.@+-]*)+$")
    """Its path inside, outside of the workspace and of the home."""

    @field_validator("source")
    @classmethod
    def _is_plain(cls, path: str) -> str:
        if re.search(r'["\x00-\x1f]', path):
            raise ValueError("a path must not have a quotation mark or control characters")
        return path


class NodeFolder(msgspec.Struct, frozen=True):
    """A resolved and permitted folder, and its path inside."""

    source: Path
    target: str


def wrong_targets(mounts: Iterable[ReadOnlyMount], workspace: str) -> list[str]:
    """Targets that would hide a folder of the session, or be part of one."""
    taken, found = [PurePosixPath(path) for path in (*OWN_TARGETS, workspace)], list[str]()
    for mount in mounts:
        target = PurePosixPath(mount.target)
        if held := next((path for path in taken if _overlap(path, target)), None):
            found.append(f"mounts: {mount.target} overlaps {held}, which is the runtime's or another mount's")
        taken.append(target)
    return found


def mount_refusals(mounts: Iterable[ReadOnlyMount], permitted: Iterable[Path]) -> list[str]:
    """Why sources cannot be mounted; empty: all can."""
    roots = [path.resolve() for path in permitted]
    return [refusal for mount in mounts if (refusal := _refusal(mount, roots))]


def node_folders(mounts: Iterable[ReadOnlyMount]) -> tuple[NodeFolder, ...]:
    """Call only after `mount_refusals` found none."""
    return tuple(NodeFolder(Path(mount.source).resolve(), mount.target) for mount in mounts)


def _refusal(mount: ReadOnlyMount, roots: list[Path]) -> str:
    try:
        source = Path(mount.source).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        return f"mounts: cannot resolve {mount.source}: {error}"
    if not any(source.is_relative_to(root) for root in roots):
        leads = "" if str(source) == mount.source else f" (it is {source})"
        return f"mounts: {mount.source}{leads} is in no folder of the node's setting {SETTING}"
    if not source.is_dir():
        return f"mounts: {mount.source} is not a folder of this node"
    if below := mounted_below(source):
        # Some runtimes would make only the outer one read-only.
        return f"mounts: {mount.source} holds another file system, at {below}: mount folders that hold none"
    return ""


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
