"""Files that only their user may read: run folders, journals, logs, kept files, the server's database.

They hold prompts, code and what agents wrote. Each file and folder gets its mode when it is made, whatever the
umask is. Polar leaves the umask of its process alone: workspaces, images and harness packages need the modes that
contained programs expect, and `import polar` works inside programs of others.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

FILE = 0o600
FOLDER = 0o700
OTHERS = 0o077


def private_folder(path: Path) -> None:
    """Makes it, and parents that are missing. Folders that exist keep their mode."""
    if not path.parent.is_dir():
        private_folder(path.parent)
    try:
        path.mkdir(mode=FOLDER, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error


def private_file(path: str, flags: int) -> int:
    """For `open(..., opener=private_file)`. A file that exists keeps its mode."""
    return os.open(path, flags, FILE)


def make_private(*roots: Path) -> None:
    """Takes files, and folders with all that is in them, from everybody else. Links are not followed; files of
    another user stay as they are."""
    for root in roots:
        _close(root)
        for parent, folders, names in os.walk(root):
            for name in (*folders, *names):  # a folder is closed before the walk enters it
                _close(Path(parent, name))


def _close(path: Path) -> None:
    with suppress(OSError):
        mode = path.lstat().st_mode
        own = FOLDER if stat.S_ISDIR(mode) else 0
        if not stat.S_ISLNK(mode) and mode & OTHERS:
            path.chmod(stat.S_IMODE(mode) & FOLDER | own)
