"""The files of a data set. They are written in a folder of their own, which takes the target's name at the end:
an export that fails or is interrupted leaves nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import orjson

from polar.errors import PolarError

REPORT = "export.json"
DATA = "data"


class NotOverwritten(PolarError):
    """The target of an export exists."""


class ExportFolder:
    """Use it as `with ExportFolder(target) as folder`, and call `commit` when all is written."""

    def __init__(self, target: Path, *, force: bool = False) -> None:
        """`force`: replaces an older export, and nothing else."""
        self.target = target
        self._check(force)
        self._scratch: Path | None = None

    def _check(self, force: bool) -> None:
        if not self.target.exists() or (self.target.is_dir() and not any(self.target.iterdir())):
            return
        if not (self.target / REPORT).is_file():
            raise NotOverwritten(f"{self.target} exists and is not an export; choose another --out")
        if not force:
            raise NotOverwritten(f"{self.target} exists; --force replaces it, or choose another --out")

    def __enter__(self) -> Path:
        """The folder to write in."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._scratch = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
        except OSError as error:
            raise PolarError(f"cannot write {self.target}: {error.strerror}") from error
        return self._scratch

    def commit(self, report: Mapping[str, Any]) -> None:
        scratch = self._scratch
        assert scratch is not None, "entered before"
        (scratch / REPORT).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
        scratch.chmod(0o777 & ~_umask())
        older = scratch.with_name(f"{scratch.name}.older")
        if self.target.exists():
            os.replace(self.target, older)
        os.replace(scratch, self.target)
        self._scratch = None
        shutil.rmtree(older, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class RowWriter(Protocol):
    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> int:
        """Finishes the files and returns their number."""
        ...


class Shards:
    """Names of the files of one split. The number of all is part of each name, so they are renamed at the end."""

    def __init__(self, folder: Path, suffix: str, split: str = "train") -> None:
        self._folder = folder / DATA
        self._folder.mkdir()
        self._suffix = suffix
        self._split = split
        self._open: list[Path] = []

    @property
    def count(self) -> int:
        return len(self._open)

    def next(self) -> Path:
        self._open.append(self._folder / f"{len(self._open):05}.part")
        return self._open[-1]

    def finish(self) -> int:
        count = self.count
        for number, path in enumerate(self._open):
            path.rename(self._folder / f"{self._split}-{number:05}-of-{count:05}.{self._suffix}")
        return count


class JsonLines:
    """Rows as lines of JSON."""

    def __init__(self, folder: Path, *, shard_rows: int, shard_bytes: int, split: str = "train") -> None:
        self._shards = Shards(folder, "jsonl", split)
        self._limits = (shard_rows, shard_bytes)
        self._file: BinaryIO | None = None
        self._rows = self._bytes = 0

    def write(self, row: dict[str, Any]) -> None:
        line = orjson.dumps(row) + b"\n"
        full = self._rows >= self._limits[0] or (self._rows and self._bytes + len(line) > self._limits[1])
        if self._file is None or full:
            self._end_file()
            self._file = self._shards.next().open("wb")
        self._file.write(line)
        self._rows += 1
        self._bytes += len(line)

    def close(self) -> int:
        self._end_file()
        return self._shards.finish()

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rows, self._bytes = None, 0, 0


class JsonDocuments:
    """A file for each row, which has its `name` and its `value`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DATA
        self._folder.mkdir()
        self._count = 0

    def write(self, row: dict[str, Any]) -> None:
        (self._folder / row["name"]).write_bytes(orjson.dumps(row["value"]))
        self._count += 1

    def close(self) -> int:
        return self._count


def _umask() -> int:
    """`mkdtemp` makes a private folder; a data set is as readable as other files of the user."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
