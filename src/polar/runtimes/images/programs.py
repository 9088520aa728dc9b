"""Runs the programs that build an image: reports their output line by line, and ends them when cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.host.threads import to_the_end

GRACE_S = 20.0
"""How long a cancelled program may take to clean up."""
KEPT_LINES = 12


async def output_of(*argv: str) -> str:
    lines: list[str] = []
    await run_program(argv, tell=lines.append)
    return "\n".join(lines)


async def run_program(
    argv: tuple[str, ...], *, tell: Callable[[str], None] = lambda line: None, cwd: Path | None = None
) -> None:
    """Raises RuntimeFailure with the program's own error lines if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # so that it gets Ctrl-C once, from us
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError as error:
        raise RuntimeFailure(
            f"{argv[0]}, which is needed to build an image, is not on PATH: install it"
        ) from error
    except OSError as error:
        raise RuntimeFailure(f"cannot start {argv[0]!r}: {error.strerror}") from error
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            last.append(text)
            tell(text)
        exit_code = await process.wait()
    except BaseException:
        await to_the_end(_end(process))
        raise
    if exit_code != 0:
        named = [line for line in last if line.startswith(("E: ", "error: ", f"{argv[0]}: "))]
        raise RuntimeFailure(f"{argv[0]} failed ({exit_code}): {'; '.join(named or last) or 'no output'}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Sends SIGTERM to its process group first: mmdebstrap cleans up after its children have ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            assert process.stdout is not None
            await process.stdout.read()
            await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
