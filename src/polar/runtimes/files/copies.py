"""Copies folders into a session and out of it.

What comes out was written by an agent, and its readers trust the node. So only plain files, folders and links that
stay inside are copied, up to a cap, and the result lists what was left out. What goes in is never written through
a link that an agent put there.

Copies run in a thread, which cannot be cancelled: a cancelled copy sets an event and waits for the thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Event
from typing import IO, TypeVar

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable, shortage_of
from polar.runtimes.base import Fetched
from polar.runtimes.files.folders import IN_THE_WAY, remove_tree
from polar.runtimes.host.descriptors import closing_fd
from polar.runtimes.host.threads import in_thread, to_the_end

Result = TypeVar("Result")

SHOWN_LEFT_OUT = 100
"""How many entries that were left out are listed."""
SHOWN_NAME = 300
MAX_ENTRIES = 200_000
"""Files and folders of one copy."""
MAX_DEPTH = 100
"""Nested folders: each holds a descriptor while it is copied."""
MAX_STEPS = 100
"""Path components followed to resolve one link."""
BLOCK_BYTES = 2**20


class CopyCancelled(Exception):
    """Raised in the copying thread when the copy is cancelled."""


async def copied_in(source: Path, target: Path) -> None:
    await _in_thread(lambda cancelled: copy_in(source, target, cancelled))


async def copied_out(source: Path, target: Path, cap_bytes: int) -> Fetched:
    return await _in_thread(lambda cancelled: copy_out(source, target, cap_bytes, cancelled))


async def _in_thread(copy: Callable[[Event], Result]) -> Result:
    """When cancelled, waits for the thread to end first: its folders are about to be removed."""
    cancelled = Event()
    copying = asyncio.ensure_future(in_thread(copy, cancelled))
    try:
        await asyncio.wait([copying])
    except asyncio.CancelledError:
        cancelled.set()
        await to_the_end(asyncio.wait([copying]))
        copying.exception()  # marks it as retrieved, so that asyncio logs no warning
        raise
    return copying.result()


def copy_in(source: Path, target: Path, cancelled: Event | None = None) -> None:
    """Copies the folder `source` over what is at `target`; keeps links, modes and times. Skips pipes and
    sockets."""
    if not source.is_dir():
        raise RuntimeFailure(f"{source} is not a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_over(source, target, cancelled or Event())
    except OSError as error:
        message = f"cannot copy {source} into the workspace: {error}"
        raise (WorkspaceUnusable if error.errno in IN_THE_WAY else RuntimeFailure)(message) from error


def copy_out(source: Path, target: Path, cap_bytes: int, cancelled: Event | None = None) -> Fetched:
    """Copies a file or folder to `target`. No process of the session may change it meanwhile. When cancelled, or
    when the node runs out of disk or descriptors, it removes the partial copy, which could be taken for a complete
    one."""
    if not os.path.lexists(source):
        raise NoSuchFile(f"there is no {source.name!r}")
    copy = _Copy(target, cap_bytes, cancelled or Event())
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing_fd(os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY)) as parent:
        try:
            copy.take(parent, source.name, target)
        except (CopyCancelled, OSError):
            remove_tree(target)
            raise
    copy.drop_links_outside()
    return copy.fetched()


def printable(name: str) -> str:
    """A name as text of bounded length that any encoding accepts; bytes that are not UTF-8 are escaped."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return text if len(text) <= SHOWN_NAME else f"{text[:SHOWN_NAME]}..."


def _raise_if(cancelled: Event) -> None:
    if cancelled.is_set():
        raise CopyCancelled


def _copy_over(source: Path, target: Path, cancelled: Event) -> None:
    pending, made = [(source, target)], list[tuple[Path, Path]]()
    while pending:
        folder, into = pending.pop()
        if into.is_symlink() or not into.is_dir():
            _make_way(into)
            into.mkdir()
            made.append((folder, into))
        with os.scandir(folder) as entries:
            for entry in entries:
                _raise_if(cancelled)
                to = into / entry.name
                if entry.is_symlink():
                    _make_way(to)
                    to.symlink_to(os.readlink(entry.path))
                elif entry.is_dir():
                    pending.append((Path(entry.path), to))
                elif entry.is_file():
                    _make_way(to)
                    shutil.copy2(entry.path, to)
    for folder, into in reversed(made):  # a folder may be read-only, so its mode is set after its content
        shutil.copystat(folder, into)


def _make_way(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


class _Copy:
    """One copy out of a session. It keeps folders open instead of reopening them by name, which may change."""

    def __init__(self, root: Path, cap_bytes: int, cancelled: Event) -> None:
        self._root = root
        self._cancelled = cancelled
        self._room_bytes = cap_bytes
        self._room_entries = MAX_ENTRIES
        self._links: list[Path] = []
        self._files = 0
        self._size_bytes = 0
        self._left_out: list[str] = []
        self._more_left_out = 0

    def take(self, folder: int, name: str, target: Path, depth: int = 0) -> None:
        self._room_entries -= 1
        _raise_if(self._cancelled)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                self._folder(folder, name, target, depth)
            elif stat.S_ISLNK(found.st_mode):
                self._link(folder, name, target)
            elif not stat.S_ISREG(found.st_mode):
                self._leave(target, "not a plain file")
            elif found.st_size > self._room_bytes:
                self._leave(target, f"{found.st_size} bytes are over the cap")
            else:
                self._file(folder, name, target)
        except OSError as error:
            if shortage_of(error):  # the node's fault: without this file the agent's work would be judged
                raise
            self._leave(target, (error.strerror or str(error)).lower())

    def drop_links_outside(self) -> None:
        """Called after all are copied: a link can lead outside through other links that do not."""
        for link in [link for link in self._links if not _stays_inside(self._root, link)]:
            link.unlink()
            self._leave(link, "a link that leads outside")

    def fetched(self) -> Fetched:
        more = (f"and {self._more_left_out} more",) if self._more_left_out else ()
        return Fetched(self._files, self._size_bytes, (*self._left_out, *more))

    def _folder(self, folder: int, name: str, target: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            return self._leave(target, f"deeper than {MAX_DEPTH} folders")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        with closing_fd(os.open(name, flags, dir_fd=folder)) as here:
            target.mkdir()
            with os.scandir(here) as entries:
                names = sorted(entry.name for entry in islice(entries, self._room_entries + 1))
            for inner in names:
                if self._room_entries <= 0:
                    return self._leave(target, "too many files; the rest is missing")
                self.take(here, inner, target / inner, depth + 1)

    def _file(self, folder: int, name: str, target: Path) -> None:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(handle, "rb") as source:
            try:
                with target.open("xb") as copy:
                    size_bytes = self._pour(source, copy)
            except OSError:
                target.unlink(missing_ok=True)
                raise
            target.chmod(0o755 if os.fstat(handle).st_mode & 0o100 else 0o644)
        self._room_bytes -= size_bytes
        self._size_bytes += size_bytes
        self._files += 1

    def _pour(self, source: IO[bytes], target: IO[bytes]) -> int:
        poured = 0
        while block := source.read(min(BLOCK_BYTES, self._room_bytes - poured)):
            _raise_if(self._cancelled)
            target.write(block)
            poured += len(block)
        return poured

    def _link(self, folder: int, name: str, target: Path) -> None:
        to = os.readlink(name, dir_fd=folder)
        if os.path.isabs(to) or target == self._root:
            self._leave(target, "a link that leads outside")
        else:
            target.symlink_to(to)
            self._links.append(target)

    def _leave(self, target: Path, why: str) -> None:
        name = target.name if target == self._root else str(target.relative_to(self._root))
        if len(self._left_out) < SHOWN_LEFT_OUT:
            self._left_out.append(f"{printable(name)}: {why}")
        else:
            self._more_left_out += 1


def _stays_inside(root: Path, link: Path) -> bool:
    """Resolves a link as the kernel would, without looking at anything outside."""
    here, ahead = root, deque(link.relative_to(root).parts)
    for _ in range(MAX_STEPS):
        if not ahead:
            return True
        name = ahead.popleft()
        if name != "..":
            here = here / name
            if to := _target_of(here):
                here = here.parent
                ahead.extendleft(reversed(Path(to).parts))
        elif here == root:
            return False
        else:
            here = here.parent
    return False


def _target_of(path: Path) -> str:
    """Empty if it is not a link, or cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
