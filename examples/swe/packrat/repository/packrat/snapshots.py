"""Snapshots: which files a folder had, and the digests of their contents."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from packrat.contents import Contents
from packrat.errors import PackratError
from packrat.ignore import FILE_NAME, Pattern, is_ignored, read_patterns


@dataclass(frozen=True)
class Entry:
    digest: str
    size_bytes: int
    executable: bool = False


@dataclass(frozen=True)
class Snapshot:
    number: int
    created: str
    message: str
    files: dict[str, Entry]
    """Path relative to the folder, with `/` between its parts."""


class Store:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.contents = Contents(folder / "contents")

    def save(self, folder: Path, message: str = "", now: datetime | None = None) -> Snapshot:
        if not folder.is_dir():
            raise PackratError(f"{folder} is not a folder")
        files = {path: self._entry(folder / path) for path in paths_below(folder)}
        created = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        snapshot = Snapshot(self._next_number(), created, message, files)
        self._write(snapshot)
        return snapshot

    def numbers(self) -> list[int]:
        """The numbers of all snapshots, oldest first."""
        return sorted(int(path.stem) for path in (self._folder / "snapshots").glob("*.json"))

    def read(self, name: str) -> Snapshot:
        """A snapshot by its number, or the `latest`."""
        numbers = self.numbers()
        if name == "latest" and numbers:
            name = str(numbers[-1])
        if not name.isdigit() or int(name) not in numbers:
            raise PackratError(f"there is no snapshot {name}")
        table = json.loads(self._path(int(name)).read_text(encoding="utf-8"))
        files = {path: Entry(**entry) for path, entry in table.pop("files").items()}
        return Snapshot(files=files, **table)

    def all(self) -> list[Snapshot]:
        return [self.read(str(number)) for number in self.numbers()]

    def restore(self, snapshot: Snapshot, target: Path) -> None:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise PackratError(f"{target} is not an empty folder")
        target.mkdir(parents=True, exist_ok=True)
        for path, entry in snapshot.files.items():
            self.contents.write(entry.digest, target / path)
            (target / path).chmod(0o755 if entry.executable else 0o644)

    def prune(self, keep: int) -> list[int]:
        """Removes all but the last snapshots and what only they need; returns their numbers."""
        if keep < 1:
            raise PackratError("at least one snapshot has to be kept")
        numbers = self.numbers()
        removed = numbers[:-keep]
        for number in removed:
            self._path(number).unlink()
        needed = {entry.digest for snapshot in self.all() for entry in snapshot.files.values()}
        for digest in self.contents.digests():
            if digest not in needed:
                self.contents.remove(digest)
        return removed

    def problems(self) -> list[str]:
        """A line for each content that is missing or damaged."""
        entries = {entry.digest: path for snapshot in self.all() for path, entry in snapshot.files.items()}
        found = ((path, digest, self.contents.problem(digest)) for digest, path in entries.items())
        return [
            f"{path}: content {digest[:12]} is {problem}" for path, digest, problem in sorted(found) if problem
        ]

    def _entry(self, path: Path) -> Entry:
        digest = self.contents.add(path)
        return Entry(digest, path.stat().st_size, os.access(path, os.X_OK))

    def _next_number(self) -> int:
        """One more than the highest number ever used, which is kept in a file: snapshots can be pruned."""
        counter = self._folder / "last-number"
        number = int(counter.read_text()) + 1 if counter.is_file() else 1
        counter.parent.mkdir(parents=True, exist_ok=True)
        counter.write_text(f"{number}\n")
        return number

    def _write(self, snapshot: Snapshot) -> None:
        path = self._path(snapshot.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(snapshot), indent=1, ensure_ascii=False), encoding="utf-8")

    def _path(self, number: int) -> Path:
        return self._folder / "snapshots" / f"{number}.json"


def paths_below(folder: Path) -> list[str]:
    """Paths of the plain files that are to be saved, sorted."""
    return sorted(_walk(folder, folder, read_patterns(folder)))


def _walk(top: Path, folder: Path, patterns: list[Pattern]) -> Iterator[str]:
    for path in folder.iterdir():
        name = path.relative_to(top).as_posix()
        is_folder = path.is_dir() and not path.is_symlink()
        if name == FILE_NAME or not is_ignored(name, patterns, is_folder=is_folder):
            if is_folder:
                yield from _walk(top, path, patterns)
            elif path.is_file() and not path.is_symlink():
                yield name
