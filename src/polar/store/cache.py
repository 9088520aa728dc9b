"""Folders shared by all runs and filled once: weights, harnesses. Safe for several processes at once."""

from __future__ import annotations

import asyncio
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from polar.config import cache_dir
from polar.errors import PolarError
from polar.store.private import FOLDER

POLL_S = 0.05


async def cached_folder(name: str, fill: Callable[[Path], Awaitable[None]], *, private: bool = False) -> Path:
    """The folder `name` of the cache. If it is missing, `fill` fills a scratch folder, which is renamed when it is
    complete, so an interrupted download leaves no incomplete folder. `private`: only the user may look into
    the folder around it; its own modes stay what sessions expect."""
    target = cache_dir() / name
    if target.is_dir():
        with suppress(OSError):  # of another user
            os.utime(target)  # when it was last used
        return target
    async with exclusive_lock(target, private=private):
        for left in target.parent.glob(f".{glob.escape(target.name)}~*"):  # by a killed process
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
async def exclusive_lock(target: Path, *, private: bool = False) -> AsyncGenerator[None]:
    """One holder at a time, over all processes.

    Polls the lock. A thread that waited for it could not be cancelled, and enough of them would leave no thread
    for the holder.
    """
    with _lock_of(target, private) as lock:
        while not _taken(lock.fileno()):  # noqa: ASYNC110 - shared with other processes
            await asyncio.sleep(POLL_S)
        yield


def _lock_of(target: Path, private: bool) -> IO[str]:
    try:
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(mode=FOLDER if private else 0o777, exist_ok=True)
        return (target.parent / f".{target.name}.lock").open("w")
    except OSError as error:
        raise PolarError(
            f"cannot write to {target.parent}: {error.strerror}; set POLAR_CACHE to another folder"
        ) from error


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def run_filler(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Runs a program that fills a folder of the cache. Returns its exit code and what it wrote to stderr; ends it
    when cancelled."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=None if env is None else {**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, errors.decode(errors="replace")
