"""Blobs as files of a folder, which several servers on one machine or one network file system may share."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from polar.store.blobs.base import BlobStore, BlobStoreError, StoredBlob, missing
from polar.store.private import private_file, private_folder

T = TypeVar("T")


class FolderStore(BlobStore):
    """Files only their user may read, each written under a temporary name and renamed when it is on disk."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.name = f"the folder {self._root}"

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, self._root / key, data)

    async def get(self, key: str) -> bytes:
        try:
            return await asyncio.to_thread((self._root / key).read_bytes)
        except FileNotFoundError as error:
            raise missing(self, key) from error
        except OSError as error:
            raise self._failed(error) from error

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._unlink, keys)

    async def pages(self, prefix: str) -> AsyncGenerator[list[StoredBlob]]:
        """One folder at a time."""
        for shard in await asyncio.to_thread(self._listed, _folders, self._root / prefix):
            yield await asyncio.to_thread(self._listed, self._files, shard)

    def _listed(self, look: Callable[[Path], list[T]], folder: Path) -> list[T]:
        try:
            return look(folder)
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, path: Path, data: bytes) -> None:
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}~")
        try:
            private_folder(path.parent)
            with open(scratch, "xb", opener=private_file) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(path)
            _sync_folder(path.parent)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise self._failed(error) from error

    def _unlink(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                (self._root / key).unlink(missing_ok=True)
            except OSError as error:
                raise self._failed(error) from error

    def _files(self, folder: Path) -> list[StoredBlob]:
        """Also what a killed server left of a write: no row names it."""
        found: list[StoredBlob] = []
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                key = path.relative_to(self._root).as_posix()
                if stat.S_ISREG(status.st_mode):  # file servers have folders of their own everywhere
                    found.append(StoredBlob(key, status.st_size, status.st_mtime))
        return found

    def _failed(self, error: OSError) -> BlobStoreError:
        return BlobStoreError(f"{self.name}: {error.strerror or error}")


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _sync_folder(folder: Path) -> None:
    """The name too is on disk then."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
