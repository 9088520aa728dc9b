"""One path for all sessions of `local`: each command sees its session's folder at the same mount point.

A harness puts its working folder into its prompt. The session's real folder has the names of run and sample in it,
so the samples of a task would start with different prompts. Each command therefore gets a mount namespace in which
the folder is also at `TARGET`.

The mount point is a plain empty folder in /tmp. Its owner could replace it, so it is used only if the owner is the
node's user or root. If another user created it first, the mount point has the node user's id in its name.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure

TARGET = Path("/tmp/polar")


def mount_point(target: Path = TARGET) -> str:
    """Where this user's sessions are mounted, created if missing; refused if it cannot be trusted."""
    parent = target.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise RuntimeFailure(f"every user can rename folders in {target.parent}")
    ours = target.with_name(f"{target.name}-{os.geteuid()}")
    for path in (target, ours):
        if _is_trusted(path):
            return str(path)
    raise RuntimeFailure(f"{ours} belongs to another user")


def _is_trusted(path: Path) -> bool:
    """Whether the node's user or root owns it; refused if so and it is not an empty folder."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o755)
    seen = path.lstat()
    if seen.st_uid not in (os.geteuid(), 0):
        return False
    if not stat.S_ISDIR(seen.st_mode):
        raise RuntimeFailure(f"{path} is not a folder")
    if any(path.iterdir()):
        raise RuntimeFailure(f"{path} is not empty")
    with suppress(PermissionError):  # it belongs to root
        os.utime(path)  # so that no cleaner of old temporary files removes it during a session
    return True
