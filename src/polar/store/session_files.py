"""Logs and kept files of a session as values that travel with its result, bounded in size, and back as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from polar.store.paths import SessionPaths
from polar.types import SessionFile

MOST_FILES = 500


def plain_files(paths: SessionPaths) -> Iterator[Path]:
    """Patch, logs and artefacts; no links."""
    if paths.patch.is_file():
        yield paths.patch
    for folder in (paths.logs, paths.artifacts):
        if folder.is_file():
            yield folder
        for parent, _, names in os.walk(folder):
            yield from (path for name in names if not (path := Path(parent, name)).is_symlink())


def read_files(paths: SessionPaths, room_bytes: int) -> tuple[SessionFile, ...]:
    """As much of them as there is room for: small files first, so that a large one costs only itself. Of a log
    that is too large there is the end; of any other such file only its size. At most `MOST_FILES`."""
    if not room_bytes:
        return ()
    sized = sorted((path.lstat().st_size, str(path.relative_to(paths.root))) for path in plain_files(paths))
    found: list[SessionFile] = []
    for position, (size_bytes, name) in enumerate(sized[:MOST_FILES]):
        share_bytes = room_bytes // (min(len(sized), MOST_FILES) - position)
        content = _read(paths.root / name, size_bytes, share_bytes, cut=name.startswith("logs/"))
        room_bytes -= len(content)
        found.append(SessionFile(name, size_bytes, content))
    return tuple(sorted(found, key=lambda file: file.path))


def _read(path: Path, size_bytes: int, room_bytes: int, *, cut: bool) -> bytes:
    if size_bytes > room_bytes and not cut:
        return b""
    try:
        with _opened(path) as file:
            file.seek(max(0, size_bytes - room_bytes))
            return file.read(room_bytes)
    except OSError:  # no plain file any more, or not readable: only its size is known
        return b""


def _opened(path: Path) -> BinaryIO:
    """Neither a link nor a pipe that would block."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def write_files(files: Iterable[SessionFile], folder: Path) -> tuple[str, ...]:
    """Writes them below `folder`. Returns `path: why` of those that are missing or incomplete."""
    incomplete: list[str] = []
    for file in files:
        if not _is_inside(file.path):  # a node sent it, and it may send anything
            incomplete.append(f"{file.path}: its path leads out of the folder")
            continue
        if len(file.content) < file.size_bytes:
            part = f"only the last {len(file.content)}" if file.content else "none"
            incomplete.append(f"{file.path}: {part} of its {file.size_bytes} bytes were uploaded")
        if file.content or not file.size_bytes:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
    return tuple(incomplete)


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
