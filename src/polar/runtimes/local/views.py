"""One path for all sessions of `local`: a session's folder, seen by its commands at the same place in each.

A harness puts its working folder into its prompt. Were that the session's real folder, with the names of run and
sample in it, the samples of a task would begin with different prompts. So each command gets a mount namespace in
which the folder stands at `TARGET`, too.

The mount point is a plain empty folder in /tmp. Whoever owns it could put another one in its place, so it is only
used where its owner is the node's user or root; where another user was first, it is one with our user's number.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure

TARGET = Path("/tmp/polar")


def mount_point(target: Path = TARGET) -> str:
    """Where sessions of this user are seen, made where it is missing; refused where it cannot be trusted."""
    parent = target.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise RuntimeFailure(f"every user can rename folders in {target.parent}")
    ours = target.with_name(f"{target.name}-{os.geteuid()}")
    return str(target if _is_trusted(target) else _made(ours))


def _is_trusted(path: Path) -> bool:
    """Refused where it is ours and unfit."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o755)
    seen = path.lstat()
    if seen.st_uid not in (os.geteuid(), 0):
        return False
    if not stat.S_ISDIR(seen.st_mode):
        raise RuntimeFailure(f"{path} is not a folder")
    if any(path.iterdir()):
        raise RuntimeFailure(f"{path} is not empty")
    with suppress(PermissionError):  # root's
        os.utime(path)  # lest a cleaner of old temporary files removes it from under the sessions
    return True


def _made(path: Path) -> Path:
    if not _is_trusted(path):
        raise RuntimeFailure(f"{path} belongs to another user")
    return path
