"""A small image of the node's own programs, without a download, and the living processes of a session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from polar.runtimes.base import Command, SessionFolders

PROGRAMS = (
    *("sh", "bash", "env", "cat", "ls", "cp", "ln", "mv", "rm", "mkdir", "mkfifo", "touch", "head", "tail", "tr"),
    *("id", "pwd", "true", "sleep", "setsid", "find", "chmod", "dd", "unshare", "hostname"),
)
KEPT_IN_WORKSPACE = "of the image"


def sh(script: str, **env: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script), env=env)


def processes() -> dict[int, str]:
    """Living processes of the machine, with their command lines."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if line := (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
    return found


def running(sign: str) -> list[str]:
    """Command lines with `sign` in them, wherever they run."""
    return [line for line in processes().values() if sign in line]


def alive_of(folders: SessionFolders) -> list[str]:
    """Processes of the session's instance on the node."""
    return running(f".{folders.session_id}-")


def make_image(root: Path) -> Path:
    """A root folder without anything that Apptainer would have put there."""
    for name in ("bin", "etc", "proc", "dev", "tmp", "var/tmp", "home", "root", "testbed/src"):
        (root / name).mkdir(parents=True)
    for program in PROGRAMS:
        found = shutil.which(program)
        assert found, f"there is no {program} on this machine"
        shutil.copy(os.path.realpath(found), root / "bin" / program)
        for library in _libraries(found):
            target = root / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "testbed/src/code.c").write_text(KEPT_IN_WORKSPACE)
    return root


def _libraries(program: str) -> Iterator[Path]:
    for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
        for word in line.split():
            if word.startswith("/"):
                yield Path(word)
