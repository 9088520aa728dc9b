"""Files in a folder that a hostile process may be changing at the same time.

Resolving a path and then opening it by name is a race: in between, a folder can become a link to the node's own
files. `openat2` does both at once and refuses a path that leaves the folder.
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
from polar.runtimes.host.descriptors import closing_fd

OPENAT2 = 437
"""Its number on every architecture except Alpha."""
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
TRIES = 100
"""The kernel gives up with EAGAIN if something is renamed at that moment."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def write_inside(base: Path, path: str, content: bytes, mode: int) -> None:
    """Writes a file and creates the folders it needs. Replaces a pipe that no process reads."""
    with closing_fd(os.open(base, FOLDER)) as root:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
        try:
            _make_folders(root, base, str(PurePosixPath(path).parent))
            try:
                handle = _open(root, base, path, flags, mode)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                with closing_fd(_open(root, base, str(PurePosixPath(path).parent), FOLDER)) as parent:
                    os.unlink(PurePosixPath(path).name, dir_fd=parent)
                handle = _open(root, base, path, flags, mode)
            with open(handle, "wb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise WorkspaceUnusable(f"cannot write {path!r}: it exists and is not a file")
                os.fchmod(handle, mode)
                file.write(content)
        except OSError as error:
            raise cannot("write", path, error) from error


def read_inside(base: Path, path: str) -> bytes:
    """Reads a plain file. Raises NoSuchFile if there is none."""
    with closing_fd(os.open(base, FOLDER)) as root:
        try:
            handle = _open(root, base, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise cannot("read", path, error) from error
    return read_opened(handle, path)


@contextmanager
def held_inside(base: Path, path: str) -> Generator[Path]:
    """A path to the same file or folder that stays valid whatever is renamed above it: links are resolved and the
    parent folder is held open. Raises NoSuchFile if there is nothing."""
    with closing_fd(os.open(base, FOLDER)) as root:
        try:
            found = _open(root, base, path, os.O_PATH)
        except OSError as error:
            raise cannot("read", path, error) from error
        with closing_fd(found):
            real = Path(os.readlink(f"/proc/self/fd/{found}"))
        if not real.is_relative_to(base.resolve()):
            raise WorkspaceUnusable(f"{path!r} leads out of its folder")
        relative = real.relative_to(base.resolve())
        folder = _open(root, base, str(relative.parent), FOLDER, resolve=RESOLVE_NO_SYMLINKS)
    with closing_fd(folder):
        yield Path(f"/proc/self/fd/{folder}") / relative.name if relative.name else real


def _make_folders(root: int, base: Path, path: str) -> None:
    for folder in reversed([PurePosixPath(path), *PurePosixPath(path).parents]):
        if folder.name:
            parent_fd = closing_fd(_open(root, base, str(folder.parent), FOLDER))
            with suppress(FileExistsError), parent_fd as parent:
                os.mkdir(folder.name, 0o755, dir_fd=parent)


def _open(root: int, base: Path, path: str, flags: int, mode: int = 0, *, resolve: int = 0) -> int:
    if not path or "\0" in path or path.startswith("/"):
        raise RuntimeFailure(f"{path!r} is not a relative path")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve)
    handle, problem = _openat2(root, path, how)
    if not problem:
        return handle
    if problem in (errno.EXDEV, errno.ELOOP):
        raise WorkspaceUnusable(f"{path!r} leads out of its folder")
    if problem == errno.ENOSYS:  # before Linux 5.6 it takes two steps
        return os.open(inside(base, path), flags, mode)
    raise OSError(problem, os.strerror(problem), path)


def _openat2(root: int, path: str, how: _OpenHow) -> tuple[int, int]:
    """A descriptor, or -1 and the error number."""
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
