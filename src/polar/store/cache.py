"""Folders every run shares, filled once: weights, harnesses. Safe with several processes at it."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from polar.config import cache_dir


async def cached_folder(name: str, fill: Callable[[Path], Awaitable[None]]) -> Path:
    """The folder `name` of the cache. Where it is missing, `fill` makes its content in a scratch folder that
    takes the name only when it is complete, so an interrupted download leaves nothing half-done behind."""
    target = cache_dir() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_path = target.parent / f".{target.name}.lock"
    with lock_path.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if not target.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                await fill(scratch)
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target
