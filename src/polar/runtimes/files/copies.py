"""Trees copied into a session and out of it.

What comes out was written by an agent, and whoever reads it trusts the node: so only plain files, folders and
links that stay inside are taken, up to a cap, and what is left out is said. What goes in is never written through
a link that an agent has laid in its way.

A large tree takes its time, in a thread, which a cancel does not reach: so it is told, and waited for.
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
from typing import IO, Any, TypeVar

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import Fetched
from polar.runtimes.files.folders import IN_THE_WAY, remove_tree
from polar.runtimes.host.spawn import to_the_end
from polar.runtimes.host.threads import in_thread

Result = TypeVar("Result")

SHOWN_LEFT_OUT = 100
"""How much of what is left out is named."""
SHOWN_NAME = 300
MAX_ENTRIES = 200_000
"""Files and folders of one copy: names cost the node too."""
MAX_DEPTH = 100
"""Folders within folders: each costs an open one while it is walked."""
MAX_STEPS = 100
"""Names on the way of one link to where it leads."""
BLOCK_BYTES = 2**20


class CopyCancelled(Exception):
    """Whoever wanted the copy wants it no longer."""


async def copied_in(source: Path, target: Path) -> None:
    await _in_thread(lambda cancelled: copy_in(source, target, cancelled))


async def copied_out(source: Path, target: Path, cap_bytes: int) -> Fetched:
    return await _in_thread(lambda cancelled: copy_out(source, target, cap_bytes, cancelled))


async def _in_thread(copy: Callable[[Event], Result]) -> Result:
    """When cancelled, the thread has ended before this does: the folders it works in are about to be removed."""
    cancelled = Event()
    copying = asyncio.ensure_future(in_thread(copy, cancelled))
    try:
        await asyncio.wait([copying])
    except asyncio.CancelledError:
        cancelled.set()
        await to_the_end(_ended(copying))
        raise
    return copying.result()


async def _ended(copying: asyncio.Future[Any]) -> None:
    await asyncio.wait([copying])
    copying.exception()  # seen: nobody waits for the outcome


def copy_in(source: Path, target: Path, cancelled: Event | None = None) -> None:
    """`source` over what stands at `target`, links, modes and times kept. A pipe or socket in it stays behind."""
    if not source.is_dir():
        raise RuntimeFailure(f"{source} is not a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _lay(source, target, cancelled or Event())
    except OSError as error:
        message = f"cannot copy {source} into the workspace: {error}"
        raise (WorkspaceUnusable if error.errno in IN_THE_WAY else RuntimeFailure)(message) from error


def copy_out(source: Path, target: Path, cap_bytes: int, cancelled: Event | None = None) -> Fetched:
    """A file or a folder to `target`. No process of the session may be alive that could change it meanwhile.
    Broken off, it takes back what it has copied: half a folder looks like a whole one."""
    if not os.path.lexists(source):
        raise NoSuchFile(f"there is no {source.name!r}")
    copy = _Copy(target, cap_bytes, cancelled or Event())
    target.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        copy.take(parent, source.name, target)
    except CopyCancelled:
        remove_tree(target)
        raise
    finally:
        os.close(parent)
    copy.drop_links_outside()
    return copy.fetched()


def printable(name: str) -> str:
    """A name as text that any encoding takes: bytes that are not UTF-8 are spelled out, length is bounded."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return text if len(text) <= SHOWN_NAME else f"{text[:SHOWN_NAME]}..."


def _refuse_if(cancelled: Event) -> None:
    if cancelled.is_set():
        raise CopyCancelled


def _lay(source: Path, target: Path, cancelled: Event) -> None:
    pending, made = [(source, target)], list[tuple[Path, Path]]()
    while pending:
        folder, into = pending.pop()
        if into.is_symlink() or not into.is_dir():
            _make_way(into)
            into.mkdir()
            made.append((folder, into))
        with os.scandir(folder) as entries:
            for entry in entries:
                _refuse_if(cancelled)
                to = into / entry.name
                if entry.is_symlink():
                    _make_way(to)
                    to.symlink_to(os.readlink(entry.path))
                elif entry.is_dir():
                    pending.append((Path(entry.path), to))
                elif entry.is_file():
                    _make_way(to)
                    shutil.copy2(entry.path, to)
    for folder, into in reversed(made):  # a folder may be read-only, so its mode comes after what it holds
        shutil.copystat(folder, into)


def _make_way(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


class _Copy:
    """One copy out. It holds on to open folders instead of names: a name may lead elsewhere the next time."""

    def __init__(self, root: Path, cap_bytes: int, cancelled: Event) -> None:
        self._root = root
        self._broken_off = cancelled
        self._room_bytes = cap_bytes
        self._room_entries = MAX_ENTRIES
        self._links: list[Path] = []
        self._files = 0
        self._size_bytes = 0
        self._left_out: list[str] = []
        self._more_left_out = 0

    def take(self, folder: int, name: str, target: Path, depth: int = 0) -> None:
        self._room_entries -= 1
        _refuse_if(self._broken_off)
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
            self._leave(target, (error.strerror or str(error)).lower())

    def drop_links_outside(self) -> None:
        """Looked at when all are there: a link can lead outside by way of others that do not."""
        for link in [link for link in self._links if not _stays_inside(self._root, link)]:
            link.unlink()
            self._leave(link, "a link that leads outside")

    def fetched(self) -> Fetched:
        more = (f"and {self._more_left_out} more",) if self._more_left_out else ()
        return Fetched(self._files, self._size_bytes, (*self._left_out, *more))

    def _folder(self, folder: int, name: str, target: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            return self._leave(target, f"deeper than {MAX_DEPTH} folders")
        here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            target.mkdir()
            with os.scandir(here) as entries:
                names = sorted(entry.name for entry in islice(entries, self._room_entries + 1))
            for inner in names:
                if self._room_entries <= 0:
                    return self._leave(target, "too many files, the rest of it is not there")
                self.take(here, inner, target / inner, depth + 1)
        finally:
            os.close(here)

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
            _refuse_if(self._broken_off)
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
    """Walks the way of a link as the kernel would, and stops before it looks at anything outside."""
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
    """Empty where it is no link. One that was cut off its folder, or whose name is too long, is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
