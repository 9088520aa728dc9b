"""Folders every run shares, filled once: weights, harnesses. Safe with several processes at it."""

from __future__ import annotations

import asyncio
import fcntl
import glob
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from polar.config import cache_dir
from polar.errors import PolarError

POLL_S = 0.05


async def cached_folder(name: str, fill: Callable[[Path], Awaitable[None]]) -> Path:
    """The folder `name` of the cache. Where it is missing, `fill` makes its content in a scratch folder that
    takes the name only when it is complete, so an interrupted download leaves nothing half-done behind."""
    target = cache_dir() / name
    if target.is_dir():
        return target
    async with alone_at(target):
        for left in target.parent.glob(f".{glob.escape(target.name)}~*"):  # of one that was killed
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        if not target.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}~", dir=target.parent))
            try:
                await fill(scratch)
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


@asynccontextmanager
async def alone_at(target: Path) -> AsyncGenerator[None]:
    """One at a time, of all processes.

    The lock is asked for again and again. A thread that waited for it could not be cancelled, and with enough of
    them none would be left for the one who has it.
    """
    with _lock_of(target) as lock:
        while not _taken(lock.fileno()):  # noqa: ASYNC110 - other processes have it too
            await asyncio.sleep(POLL_S)
        yield


def _lock_of(target: Path) -> IO[str]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return (target.parent / f".{target.name}.lock").open("w")
    except OSError as error:
        raise PolarError(
            f"{target.parent} cannot be written: {error.strerror}; POLAR_CACHE names another cache"
        ) from error


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
