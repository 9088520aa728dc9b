"""Contents of files, each stored once under its digest."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from packrat.errors import PackratError

CHUNK_BYTES = 64 * 1024


class Contents:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, source: Path) -> str:
        """Stores the content of a file and returns its digest."""
        digest = digest_of(source)
        target = self._path(digest)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copyfile(source, part)
            part.rename(target)
        return digest

    def write(self, digest: str, target: Path) -> None:
        """Writes a content to a new file."""
        if not self._path(digest).is_file():
            raise PackratError(f"content {digest[:12]} is missing from the store")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._path(digest), target)

    def problem(self, digest: str) -> str:
        """Why a content cannot be used; empty: it is fine."""
        path = self._path(digest)
        if not path.is_file():
            return "missing"
        return "" if digest_of(path) == digest else "damaged"

    def digests(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("??/*")):
            if path.suffix != ".part":
                yield path.parent.name + path.name

    def remove(self, digest: str) -> None:
        self._path(digest).unlink()

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest[2:]


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, read in parts: a file may be larger than memory."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()
