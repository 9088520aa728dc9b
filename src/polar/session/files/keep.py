"""Which files of a session are kept when its runtime is gone: artefacts and the harness's own logs.

They are copied after the harness is dead and before the evaluator works in the workspace, so they are the agent's
work. The session's key is in none of the files and in none of their names.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path, PurePosixPath

from polar.errors import RuntimeFailure
from polar.runtimes.base import Fetched
from polar.runtimes.files.copies import printable
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread
from polar.session.live import LiveSession
from polar.store.paths import SessionPaths
from polar.store.private import make_private
from polar.store.session_files import plain_files

HARNESS_HOME = "harness-home"
"""Folder in `logs/` for files from the harness's home."""
SHOWN_LEFT_OUT = 200


def make_empty(paths: SessionPaths) -> None:
    """Creates the session's folder, and removes files that an earlier attempt has kept."""
    paths.create()
    paths.patch.unlink(missing_ok=True)
    for folder in (paths.artifacts, paths.logs / HARNESS_HOME, paths.evaluator_logs):
        remove_tree(folder)


async def keep_artifacts(live: LiveSession) -> None:
    keep = live.task.keep
    room_bytes = int(keep.cap_bytes)
    for path in keep.artifacts:
        fetched = await _fetch(live, path, live.paths.artifacts / path, room_bytes)
        if fetched is None:
            live.left_out.append(f"artifacts/{path}: the workspace has none")
        else:
            room_bytes -= fetched.size_bytes


async def keep_harness_logs(live: LiveSession) -> None:
    keep = live.task.keep
    room_bytes = int(keep.cap_bytes)
    for path in _apart(live.launch.logs if live.launch and keep.harness_logs else ()):
        target = live.paths.logs / HARNESS_HOME / path
        fetched = await _fetch(live, path, target, room_bytes, home=True)
        room_bytes -= fetched.size_bytes if fetched else 0


async def hide_key(live: LiveSession) -> None:
    """Replaces the key by stars in all files, and removes files and links that have it in their name. The key is
    no longer valid, but readers of a log cannot know that."""
    if live.slot is None:
        return
    key, root = live.slot.key, live.paths.root
    try:
        removed, blotted = await in_thread(_hide, live.paths, key)
        for path in removed:
            live.left_out.append(f"{printable(str(path.relative_to(root)))}: it has the session's key in its name")
        for path in blotted:
            live.left_out.append(f"{printable(str(path.relative_to(root)))}: the session's key, replaced by stars")
    except (RuntimeFailure, OSError) as error:
        live.left_out.append(f"logs: not searched for the session's key: {error}")
    live.left_out = [line.replace(key, "*" * len(key)) for line in live.left_out]


async def close_files(live: LiveSession) -> None:
    """Runtimes and evaluators write logs and artefacts with modes of their own."""
    await in_thread(make_private, live.paths.logs, live.paths.artifacts, live.paths.patch)


def shortened(lines: list[str]) -> tuple[str, ...]:
    """The first lines, for the result."""
    more = len(lines) - SHOWN_LEFT_OUT
    return tuple(lines) if more <= 0 else (*lines[:SHOWN_LEFT_OUT], f"and {more} more")


async def _fetch(
    live: LiveSession, path: str, target: Path, cap_bytes: int, *, home: bool = False
) -> Fetched | None:
    """None: there is nothing at `path`."""
    assert live.runtime is not None, "the runtime is started first"
    name = str(target.relative_to(live.paths.root))
    try:
        fetched = await live.runtime.fetch(path, target, cap_bytes=cap_bytes, home=home)
    except FileNotFoundError:
        return None
    except (RuntimeFailure, OSError) as error:
        live.left_out.append(f"{name}: {error}")
        return Fetched()
    if target.exists():
        live.kept.append(name)
    holder = name if target.is_dir() else str(PurePosixPath(name).parent)
    live.left_out += [f"{holder}: {line}" for line in fetched.left_out]
    return fetched


def _apart(paths: tuple[str, ...]) -> list[str]:
    """Without paths inside another one, and without paths that lead out of the target folder."""
    found = [PurePosixPath(path) for path in dict.fromkeys(paths)]
    sound = [path for path in found if not path.is_absolute() and ".." not in path.parts]
    return [str(path) for path in sound if not any(other in path.parents for other in sound)]


def _hide(paths: SessionPaths, key: str) -> tuple[list[Path], list[Path]]:
    """The removed paths, and the files that contained the key."""
    removed = _remove_named(paths, key)
    return removed, [path for path in plain_files(paths) if _blot_file(path, key.encode())]


def _remove_named(paths: SessionPaths, key: str) -> list[Path]:
    found = [
        path
        for kept in (paths.logs, paths.artifacts)
        for parent, folders, names in os.walk(kept)
        for path in (Path(parent, name) for name in (*folders, *names))
        if key in path.name or (path.is_symlink() and key in os.readlink(path))
    ]
    for path in found:
        path.unlink(missing_ok=True) if path.is_symlink() else remove_tree(path)
    return found


def _blot_file(path: Path, key: bytes) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = first = content.find(key)
        while at >= 0:
            content[at : at + len(key)] = b"*" * len(key)
            at = content.find(key, at + len(key))
    return first >= 0
