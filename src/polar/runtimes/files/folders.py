"""Reading, writing and removing a session's files on the node: paths that lead outside are refused, and removal
copes with whatever an agent left behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.host.supervisor import View

MAX_READ_BYTES = 256 * 2**20
"""Protects the node's memory from a file that grows without end."""
IN_THE_WAY = {
    *(errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT),
    *(errno.ENOTDIR, errno.ENOTEMPTY, errno.ENXIO, errno.EPERM, errno.ETXTBSY),
}
"""Errors caused by what the session's processes left there, not by the machine."""
MAX_LINKS = 40
"""Links followed in one path, as in the kernel."""


def take_root(root: Path, own: Collection[str]) -> tuple[Path, bool]:
    """Creates a session's root folder. Returns its resolved path, and whether it holds leftovers of a dead node.
    Refuses a folder that holds anything but the runtime's `own` folders, because it will be removed."""
    root = root.absolute()
    left = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    if strangers := [name for name in left if name not in own]:
        raise RuntimeFailure(f"{root} is not a session's folder: it holds {strangers[0]!r}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root.resolve(), bool(left)


def inside(base: Path, path: str, view: View | None = None) -> Path:
    """Resolves `path` under `base`; refuses one that leads outside. With a `view`, absolute links are resolved as
    the session's processes see them."""
    if "\0" in path or not path or Path(path).is_absolute():
        raise RuntimeFailure(f"{path!r} is not a relative path")
    if path == "." and not os.path.islink(base):
        return base
    try:
        found = _followed(base / path, view) if view is not None else (base / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise WorkspaceUnusable(f"cannot resolve {path!r}: {error}") from error
    if not found.is_relative_to(base):
        raise WorkspaceUnusable(f"{path!r} leads out of its folder")
    return found


def _followed(path: Path, view: View) -> Path:
    """Starts at the view's folder, whose path has no links: the session owns nothing above it."""
    here, ahead, links = view.source, list(reversed(path.relative_to(view.source).parts)), 0
    while ahead:
        name = ahead.pop()
        step = here.parent if name == ".." else here / name
        if not step.is_symlink():
            here = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = step.readlink()
        if target.is_relative_to(view.target):
            target = view.source / target.relative_to(view.target)
        if target.is_absolute():
            here = Path("/")
        ahead += [part for part in reversed(target.parts) if part != "/"]
    return here


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replaces a pipe: opening it would block forever, because no process reads it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not (path.is_file() or path.is_dir()):
            path.unlink()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
    except OSError as error:
        raise cannot("write", path.name, error) from error


def read_file(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would block forever
    except OSError as error:
        raise cannot("read", path.name, error) from error
    return read_opened(handle, path.name)


def read_opened(handle: int, name: str) -> bytes:
    """Reads a plain file and closes its descriptor."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise NoSuchFile(f"{name!r} is not a file")
    with open(handle, "rb") as file:
        if found.st_size > MAX_READ_BYTES:
            raise WorkspaceUnusable(f"{name!r} has {found.st_size} bytes; at most {MAX_READ_BYTES} can be read")
        return file.read(found.st_size)  # no more, even if it grows meanwhile


def cannot(act: str, name: str, error: OSError) -> RuntimeFailure:
    """The exception for a file system error: caused by the session's own files, or by the node."""
    message = f"cannot {act} {name!r}: {error.strerror}"
    if act == "read" and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NoSuchFile(f"there is no {name!r}")
    return WorkspaceUnusable(message) if error.errno in IN_THE_WAY else RuntimeFailure(message)


def refuse_mounts(root: Path) -> None:
    """Removing the folder would also empty a file system mounted below, which is not the session's."""
    resolved = root.resolve()
    if found := mounted_below(resolved, itself=True):
        raise RuntimeFailure(f"cannot remove {root}: something is mounted at {found}; unmount it first")


def mounted_below(resolved: Path, *, itself: bool = False) -> str | None:
    """The first mount point below a resolved folder. `itself`: the folder counts too."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return None
    below = f"{resolved}/".replace("//", "/")
    lines = [line for line in lines if resolved.name in line or "\\" in line]  # few; decoding paths is slower
    points = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4]) for line in lines)
    return next(
        (point for point in points if f"{point}/".startswith(below) and (itself or point != str(resolved))), None
    )


def remove_tree(root: Path) -> None:
    """Removes a folder whose processes are dead, even if folders in it are read-only, closed or very deep."""
    if not os.path.lexists(root):
        return
    refuse_mounts(root)
    try:
        shutil.rmtree(root)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", "--", str(root)], stderr=subprocess.DEVNULL)
        removal = subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", str(root)], capture_output=True, text=True
        )
        if removal.returncode != 0:
            raise RuntimeFailure(f"cannot remove {root}: {removal.stderr.strip()[:500]}") from None
