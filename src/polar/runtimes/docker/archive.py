"""Tar archives that go into a container and come out of it.

What comes out was written by an agent: it is read as a stream, and a file over the cap is never written to disk,
whatever size it claims.
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

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable, shortage_of
from polar.runtimes.base import Fetched
from polar.runtimes.files.copies import MAX_ENTRIES, SHOWN_LEFT_OUT, copy_out
from polar.runtimes.files.folders import MAX_READ_BYTES

READ_PAST_BYTES = 2 * 2**30
"""How many bytes over the cap are skipped to reach the entries after them."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of files that are put into a container."""

    uid: int
    gid: int


def pack(path: PurePosixPath, mode: int, owner: Owner, content: bytes | None = None) -> IO[bytes]:
    """A tar of one file, or of a folder if there is no content, with the folders above it."""
    packed = io.BytesIO()
    with _writer(packed) as tar:
        _add_folders(tar, reversed(path.parents[:-1]), owner)
        entry = _entry(path, tarfile.DIRTYPE if content is None else tarfile.REGTYPE, mode, owner)
        entry.size = len(content or b"")
        tar.addfile(entry, io.BytesIO(content or b""))
    return packed


def pack_tree(source: Path, below: PurePosixPath, owner: Owner, packed: IO[bytes]) -> None:
    """Packs the content of `source` under `below`; keeps links and modes."""
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
    """The one file of a tar, if it is not too large: a sparse file can be larger than the disk."""
    with _reader(stream(MAX_READ_BYTES + READ_PAST_BYTES)) as tar:
        for entry in tar:
            if entry.isreg() and (found := tar.extractfile(entry)) is not None:
                if entry.size > MAX_READ_BYTES:
                    raise WorkspaceUnusable(
                        f"the file has {entry.size} bytes; at most {MAX_READ_BYTES} can be read"
                    )
                return found.read()
    raise NoSuchFile("the tar holds no file")


def unpack(stream: Callable[[int | None], io.RawIOBase], scratch: Path, target: Path, cap_bytes: int) -> Fetched:
    """Unpacks a tar of one file or folder to `target`, through the empty folder `scratch`. `stream` raises
    StreamTooLong after the given number of bytes."""
    unpacking = _Unpacking(scratch, cap_bytes)
    try:
        with _reader(stream(cap_bytes + READ_PAST_BYTES)) as tar:
            for entry in tar:
                unpacking.take(entry, tar)
    except StreamTooLong:
        unpacking.leave("what comes after", f"more than {READ_PAST_BYTES} bytes to skip")
    unpacking.make_links()
    if unpacking.root is None:
        raise RuntimeFailure("the Docker Engine sent an empty tar")
    if not os.path.lexists(scratch / unpacking.root):  # a single file that was left out
        target.parent.mkdir(parents=True, exist_ok=True)
        return Fetched(left_out=tuple(unpacking.left_out))
    fetched = copy_out(scratch / unpacking.root, target, cap_bytes)
    return Fetched(fetched.files, fetched.size_bytes, (*fetched.left_out, *unpacking.left_out)[:SHOWN_LEFT_OUT])


class StreamTooLong(Exception):
    """The stream is longer than its limit."""


class _Unpacking:
    """Writes the acceptable entries to disk, for `copy_out` to copy."""

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
            self.leave(self._shown(path), "too many files")
        elif entry.issym():
            self._links.append((path, entry.linkname))
        elif not (entry.isdir() or entry.islnk() or entry.isreg()):
            self.leave(self._shown(path), "not a plain file")
        elif entry.isreg() and entry.size > self._room_bytes:
            self.leave(self._shown(path), f"{entry.size} bytes are over the cap")
        else:
            try:
                self._make(entry, tar, self._scratch / path)
            except OSError as error:
                if shortage_of(error):  # the node's fault: without this file the agent's work would be judged
                    raise
                self.leave(self._shown(path), error.strerror or "cannot be written")

    def make_links(self) -> None:
        """Called last: if a process replaces a folder by a link while the tar is made, the node must not write
        through that link."""
        for path, to in self._links:
            try:
                (self._scratch / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._scratch / path).symlink_to(to)
            except OSError as error:
                self.leave(self._shown(path), error.strerror or "cannot be written")

    def leave(self, what: str, why: str) -> None:
        if len(self.left_out) < SHOWN_LEFT_OUT:
            self.left_out.append(f"{what}: {why}")

    def _shown(self, path: PurePosixPath) -> str:
        return "/".join(path.parts[1:]) or path.name

    def _make(self, entry: tarfile.TarInfo, tar: tarfile.TarFile, path: Path) -> None:
        if entry.isdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entry.islnk():  # a second name of an earlier file
            os.link(self._scratch / PurePosixPath(entry.linkname), path, follow_symlinks=False)
            return
        content = tar.extractfile(entry)
        assert content is not None
        with path.open("xb") as file:
            try:
                shutil.copyfileobj(content, file)
            except BaseException:
                path.unlink()  # do not leave half a file
                raise
            os.fchmod(file.fileno(), 0o700 if entry.mode & 0o100 else 0o600)
        self._room_bytes -= entry.size


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RuntimeFailure(f"the Docker Engine sent a tar with the path {name!r}")
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
    """Leaves `packed` ready to be read. The GNU format keeps names that are not UTF-8."""
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        yield tar
        end_bytes = tar.offset + 2 * tarfile.BLOCKSIZE
    # Two empty blocks are the end. Podman reads no further, so padding after them would break its pipe.
    packed.truncate(end_bytes)
    packed.seek(0)


def _reader(stream: io.RawIOBase) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BufferedReader(stream, 2**18), mode="r|", bufsize=2**18)
