"""The sampler as a trainer starts it: a program with a port, to which anybody can connect."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def running_sampler(model: Path, *more: str, key: str = "") -> AsyncIterator[str]:
    """Yields its address."""
    arguments = ("--model", str(model), "--port", "0", "--threads", "1", "--context-tokens", "512", *more)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "polar.engines.torch.server", *arguments),
        env={**os.environ, "SAMPLER_KEY": key},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()
