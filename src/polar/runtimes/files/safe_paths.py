"""Files below a folder that a hostile process may be changing meanwhile.

To look where a path leads and then open it by name is a race: between the two, a folder can become a link to the
node's own files. The kernel does both at once (`openat2`) and refuses a path that leaves the folder on its way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.files.folders import cannot, inside, read_opened

OPENAT2 = 437
"""The same number on every kind of machine but Alpha."""
NO_MAGIC_LINKS, NO_LINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
TRIES = 100
"""The kernel gives up where something is renamed just then, and may be asked again."""


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def write_inside(base: Path, path: str, content: bytes, mode: int) -> None:
    """A file, and the folders it needs. What is there and is no file gives way, but for a folder."""
    with _opened(base) as root:
        parent = str(PurePosixPath(path).parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
        try:
            _make_folders(root, base, parent)
            try:
                handle = _open(root, base, path, flags, mode)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                _unlink(root, base, path)  # a pipe that nobody reads
                handle = _open(root, base, path, flags, mode)
            with open(handle, "wb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise WorkspaceUnusable(f"cannot write {path!r}: what is there is not a file")
                os.fchmod(handle, mode)
                file.write(content)
        except OSError as error:
            raise cannot("write", path, error) from error


def read_inside(base: Path, path: str) -> bytes:
    """A plain file; NoSuchFile where there is none."""
    with _opened(base) as root:
        try:
            handle = _open(root, base, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise cannot("read", path, error) from error
    return read_opened(handle, path)


@contextmanager
def held_inside(base: Path, path: str) -> Generator[Path]:
    """A path to the same thing that stays what it is, whatever is renamed above it: links on the way followed, its
    folder held open. NoSuchFile where there is nothing."""
    with _opened(base) as root:
        try:
            found = _open(root, base, path, os.O_PATH)
        except OSError as error:
            raise cannot("read", path, error) from error
        try:
            real = Path(os.readlink(f"/proc/self/fd/{found}"))
        finally:
            os.close(found)
        if not real.is_relative_to(base.resolve()):
            raise WorkspaceUnusable(f"{path!r} leads out of its folder")
        below = real.relative_to(base.resolve())
        folder = _open(root, base, str(below.parent), os.O_RDONLY | os.O_DIRECTORY, resolve=NO_LINKS)
    try:
        yield Path(f"/proc/self/fd/{folder}") / below.name if below.name else real
    finally:
        os.close(folder)


@contextmanager
def _opened(base: Path) -> Generator[int]:
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _make_folders(root: int, base: Path, path: str) -> None:
    made = PurePosixPath()
    for part in PurePosixPath(path).parts:
        parent, made = made, made / part
        with suppress(FileExistsError):
            holder = _open(root, base, str(parent), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.mkdir(part, 0o755, dir_fd=holder)
            finally:
                os.close(holder)


def _unlink(root: int, base: Path, path: str) -> None:
    holder = _open(root, base, str(PurePosixPath(path).parent), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.unlink(PurePosixPath(path).name, dir_fd=holder)
    finally:
        os.close(holder)


def _open(root: int, base: Path, path: str, flags: int, mode: int = 0, *, resolve: int = 0) -> int:
    if not path or "\0" in path or path.startswith("/"):
        raise RuntimeFailure(f"{path!r} is not a relative path")
    how = _How(flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | NO_MAGIC_LINKS | resolve)
    handle, problem = _asked(root, path, how)
    if not problem:
        return handle
    if problem in (errno.EXDEV, errno.ELOOP):
        raise WorkspaceUnusable(f"{path!r} leads out of its folder")
    if problem == errno.ENOSYS:  # before Linux 5.6 it has to be done in two steps
        return os.open(inside(base, path), flags, mode)
    raise OSError(problem, os.strerror(problem), path)


def _asked(root: int, path: str, how: _How) -> tuple[int, int]:
    """A descriptor, and why there is none."""
    if platform.system() != "Linux":
        return -1, errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    problem = errno.EAGAIN
    for _ in range(TRIES):
        handle = int(libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
        problem = ctypes.get_errno()
        if handle >= 0:
            return handle, 0
        if problem != errno.EAGAIN:
            break
    return -1, problem
