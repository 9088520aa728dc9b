"""The sampler as a trainer starts it: a program with a port, to which anybody can connect."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path


def sampler_command(model: Path, *more: str) -> tuple[str, ...]:
    options = ("--model", str(model), "--port", "0", "--threads", "1", "--context-tokens", "512", *more)
    return sys.executable, "-m", "polar.engines.torch.server", *options


@asynccontextmanager
async def running_sampler(model: Path, *more: str, key: str = "") -> AsyncIterator[str]:
    """Yields its address."""
    process = await asyncio.create_subprocess_exec(
        *sampler_command(model, *more), env={**os.environ, "SAMPLER_KEY": key}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@contextmanager
def blocking_sampler(model: Path) -> Iterator[str]:
    """The same for tests without an event loop."""
    with subprocess.Popen(sampler_command(model), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
