"""Tars that go into a container and come out of it.

What comes out is an agent's: it is read as it arrives, and a file that is over the cap is never written down,
however large it says it is.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import Fetched
from polar.runtimes.files.copies import MAX_ENTRIES, SHOWN_LEFT_OUT, copy_out
from polar.runtimes.files.folders import MAX_READ_BYTES

READ_PAST_BYTES = 2 * 2**30
"""How much of what is over the cap is read through to reach what comes after it."""


class Owner(msgspec.Struct, frozen=True):
    """To whom what is put in belongs."""

    uid: int
    gid: int


class NewFile(msgspec.Struct, frozen=True):
    path: PurePosixPath
    """From where the tar is unpacked; the folders above it are made."""
    content: bytes
    mode: int


def pack_file(file: NewFile, owner: Owner) -> IO[bytes]:
    packed = io.BytesIO()
    with _writer(packed) as tar:
        _add_folders(tar, reversed(file.path.parents[:-1]), owner)
        entry = _entry(file.path, tarfile.REGTYPE, file.mode, owner)
        entry.size = len(file.content)
        tar.addfile(entry, io.BytesIO(file.content))
    return packed


def pack_folder(path: PurePosixPath, owner: Owner, mode: int) -> IO[bytes]:
    packed = io.BytesIO()
    with _writer(packed) as tar:
        _add_folders(tar, reversed(path.parents[:-1]), owner)
        tar.addfile(_entry(path, tarfile.DIRTYPE, mode, owner))
    return packed


def pack_tree(source: Path, below: PurePosixPath, owner: Owner, packed: IO[bytes]) -> None:
    """What is in `source`, under `below`; links and modes kept."""
    if not source.is_dir():
        raise RuntimeFailure(f"{source} is not a folder")

    def ours(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return None
        entry.uid, entry.gid, entry.uname, entry.gname = owner.uid, owner.gid, "", ""
        return entry

    try:
        with _writer(packed) as tar:
            _add_folders(tar, reversed([below, *below.parents][:-1]), owner)
            for path in sorted(source.iterdir()):
                tar.add(path, str(below / path.name), filter=ours)
    except OSError as error:
        raise RuntimeFailure(f"cannot copy {source} into the workspace: {error}") from error


def read_file(stream: Callable[[int | None], io.RawIOBase]) -> bytes:
    """The one file of a tar, as long as it may be read at once: it can be sparse, and be larger than the disk."""
    with _reader(stream(MAX_READ_BYTES + READ_PAST_BYTES)) as tar:
        for entry in tar:
            if entry.isreg() and (found := tar.extractfile(entry)) is not None:
                if entry.size > MAX_READ_BYTES:
                    raise WorkspaceUnusable(f"{entry.size} bytes are more than the {MAX_READ_BYTES} read at once")
                return found.read()
    raise NoSuchFile("the tar holds no file")


def unpack(stream: Callable[[int | None], io.RawIOBase], scratch: Path, target: Path, cap_bytes: int) -> Fetched:
    """A tar of one file or folder to `target`, by way of an empty folder. `stream` is told where to give up."""
    unpacking = _Unpacking(scratch, cap_bytes)
    try:
        with _reader(stream(cap_bytes + READ_PAST_BYTES)) as tar:
            for entry in tar:
                unpacking.take(entry, tar)
    except StreamTooLong:
        unpacking.leave("what comes after", f"more than {READ_PAST_BYTES} bytes to read past")
    unpacking.make_links()
    if unpacking.root is None:
        raise RuntimeFailure("the engine has sent an empty tar")
    if not os.path.lexists(scratch / unpacking.root):  # a single file, which was left out
        target.parent.mkdir(parents=True, exist_ok=True)
        return Fetched(left_out=tuple(unpacking.left_out))
    fetched = copy_out(scratch / unpacking.root, target, cap_bytes)
    return Fetched(fetched.files, fetched.size_bytes, (*fetched.left_out, *unpacking.left_out)[:SHOWN_LEFT_OUT])


class StreamTooLong(Exception):
    """The stream is longer than anyone is ready to read."""


class _Unpacking:
    """Writes down what may pass, so that `copy_out` finds a tree like any other."""

    def __init__(self, scratch: Path, cap_bytes: int) -> None:
        self._scratch = scratch
        self._room_bytes = cap_bytes
        self._entries = 0
        self._links: list[tuple[PurePosixPath, str]] = []
        self.root: str | None = None
        """The first part of every path."""
        self.left_out: list[str] = []

    def take(self, entry: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        path = _checked(entry.name)
        if entry.islnk():
            _checked(entry.linkname)
        self.root = self.root or path.parts[0]
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            self.leave(self._told(path), "too many files")
        elif entry.issym():
            self._links.append((path, entry.linkname))
        elif not (entry.isdir() or entry.islnk() or entry.isreg()):
            self.leave(self._told(path), "not a plain file")
        elif entry.isreg() and entry.size > self._room_bytes:
            self.leave(self._told(path), f"{entry.size} bytes are over the cap")
        else:
            try:
                self._make(entry, tar, self._scratch / path)
            except OSError as error:
                self.leave(self._told(path), error.strerror or "it cannot be written")

    def make_links(self) -> None:
        """Last of all: a process that swaps a folder for a link while the tar is made must not have the node write
        where the link leads."""
        for path, to in self._links:
            try:
                (self._scratch / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._scratch / path).symlink_to(to)
            except OSError as error:
                self.leave(self._told(path), error.strerror or "it cannot be written")

    def leave(self, what: str, why: str) -> None:
        if len(self.left_out) < SHOWN_LEFT_OUT:
            self.left_out.append(f"{what}: {why}")

    def _told(self, path: PurePosixPath) -> str:
        return "/".join(path.parts[1:]) or path.name

    def _make(self, entry: tarfile.TarInfo, tar: tarfile.TarFile, path: Path) -> None:
        if entry.isdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entry.islnk():  # a second name of a file that came before
            os.link(self._scratch / PurePosixPath(entry.linkname), path, follow_symlinks=False)
            return
        content = tar.extractfile(entry)
        assert content is not None
        with path.open("xb") as file:
            try:
                shutil.copyfileobj(content, file)
            except BaseException:
                path.unlink()  # half a file is none
                raise
            os.fchmod(file.fileno(), 0o700 if entry.mode & 0o100 else 0o600)
        self._room_bytes -= entry.size


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RuntimeFailure(f"the engine has sent a tar with {name!r} in it")
    return path


def _add_folders(tar: tarfile.TarFile, paths: Iterable[PurePosixPath], owner: Owner) -> None:
    for path in paths:
        tar.addfile(_entry(path, tarfile.DIRTYPE, 0o755, owner))


def _entry(path: PurePosixPath, kind: bytes, mode: int, owner: Owner) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(str(path))
    entry.type, entry.mode, entry.uid, entry.gid = kind, mode, owner.uid, owner.gid
    entry.mtime = int(time.time())
    return entry


@contextmanager
def _writer(packed: IO[bytes]) -> Generator[tarfile.TarFile]:
    """Leaves `packed` ready to be read. The GNU form keeps names that are no text as they are."""
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        yield tar
        end_bytes = tar.offset + 2 * tarfile.BLOCKSIZE
    # Two empty blocks are the end. Podman reads no further, and what is filled up behind them breaks its pipe.
    packed.truncate(end_bytes)
    packed.seek(0)


def _reader(stream: io.RawIOBase) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BufferedReader(stream, 2**18), mode="r|", bufsize=2**18)
