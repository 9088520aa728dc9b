"""Trees copied into a session and out of it.

What comes out was written by an agent, and whoever reads it trusts the node: so only plain files, folders and
links that stay inside are taken, up to a cap, and what is left out is said.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.base import Fetched

SHOWN_LEFT_OUT = 100
"""How much of what is left out is named."""
MAX_ENTRIES = 200_000
"""Files and folders of one copy: names cost the node too."""


def copy_in(source: Path, target: Path) -> None:
    """`source` over what stands at `target`, links, modes and times kept."""
    if not source.is_dir():
        raise RuntimeFailure(f"{source} is not a folder")
    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise RuntimeFailure(f"cannot copy {source} into the workspace: {error}") from error


def copy_out(source: Path, target: Path, cap_bytes: int) -> Fetched:
    """A file or a folder to `target`. No process of the session may be alive that could change it meanwhile."""
    if not os.path.lexists(source):
        raise FileNotFoundError(f"there is no {source.name!r}")
    copy = _Copy(source, cap_bytes)
    if source.is_dir():
        target.mkdir(parents=True)
        for path in _walk(source):
            copy.take(path, target / path.relative_to(source))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy.take(source, target)
    copy.drop_links_outside(target)
    return Fetched(copy.files, copy.size_bytes, tuple(copy.left_out))


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below, folders before what they hold; links are not followed."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


class _Copy:
    def __init__(self, root: Path, cap_bytes: int) -> None:
        self._root = root
        self._room_bytes = cap_bytes
        self._entries = 0
        self._links: list[tuple[Path, Path]] = []
        self.files = 0
        self.size_bytes = 0
        self.left_out: list[str] = []

    def take(self, path: Path, target: Path) -> None:
        found = path.lstat()
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            self._leave(path, "too many files")
        elif stat.S_ISDIR(found.st_mode):
            target.mkdir(exist_ok=True)
        elif stat.S_ISLNK(found.st_mode):
            self._link(path, target)
        elif not stat.S_ISREG(found.st_mode):
            self._leave(path, "not a plain file")
        elif found.st_size > self._room_bytes:
            self._leave(path, f"{found.st_size} bytes are over the cap")
        else:
            shutil.copyfile(path, target)
            target.chmod(0o755 if found.st_mode & 0o100 else 0o644)
            self._room_bytes -= found.st_size
            self.size_bytes += found.st_size
            self.files += 1

    def drop_links_outside(self, target: Path) -> None:
        """Looked at when all are there: a link can lead outside by way of others that do not."""
        base = target.resolve() if target.is_dir() and not target.is_symlink() else target.parent.resolve()
        for path, link in self._links:
            if not Path(os.path.realpath(link)).is_relative_to(base):
                link.unlink()
                self._leave(path, "a link that leads outside")

    def _link(self, path: Path, target: Path) -> None:
        to = os.readlink(path)
        if os.path.isabs(to):
            self._leave(path, "a link that leads outside")
        else:
            target.symlink_to(to)
            self._links.append((path, target))

    def _leave(self, path: Path, why: str) -> None:
        if len(self.left_out) < SHOWN_LEFT_OUT:
            name = path.name if path == self._root else str(path.relative_to(self._root))
            self.left_out.append(f"{name}: {why}")
