"""Files of a session's folders, touched on behalf of others: paths that lead outside are refused, and removal
copes with whatever an agent has left behind."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from polar.errors import RuntimeFailure


def inside(base: Path, path: str) -> Path:
    """`path` under `base`, links followed; refused where it leads outside."""
    if "\0" in path or not path or Path(path).is_absolute():
        raise RuntimeFailure(f"{path!r} is not a relative path")
    try:
        found = (base / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise RuntimeFailure(f"{path!r} cannot be followed: {error}") from error
    if not found.is_relative_to(base):
        raise RuntimeFailure(f"{path!r} leads out of its folder")
    return found


def write_file(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {path.name!r}: {error.strerror}") from error


def read_file(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe in the workspace would be read for ever
        raise FileNotFoundError(f"{path.name!r} is not a file")
    return path.read_bytes()


def remove_tree(root: Path) -> None:
    """Removes a folder whose processes are dead, also where folders in it are read-only, closed or very deep."""
    if not os.path.lexists(root):
        return
    try:
        shutil.rmtree(root)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", "--", str(root)], stderr=subprocess.DEVNULL)
        removal = subprocess.run(["rm", "-rf", "--", str(root)], capture_output=True, text=True)
        if removal.returncode != 0:
            raise RuntimeFailure(f"cannot remove {root}: {removal.stderr.strip()[:500]}") from None
