"""A server that an engine starts as its child: starts it, stops it, keeps the end of its log.

The child reads one line of settings from stdin, writes one line with its address to stdout when it is ready, and
exits when stdin closes. So it never outlives its parent, even one that is killed.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from typing import ClassVar, Self

import msgspec

from polar.errors import EngineError

STOP_TIMEOUT_S = 5.0
LOG_TAIL_BYTES = 4000


class ChildProcess:
    product: ClassVar[str]
    """Its name in messages."""
    command: ClassVar[tuple[str, ...]]
    """Arguments of Python that start it."""
    start_timeout_s: ClassVar[float] = 120.0

    def __init__(self, process: Process) -> None:
        self._process = process
        self._log_tail = b""
        self._log_task = asyncio.create_task(self._keep_log())

    @classmethod
    async def spawn(cls) -> Self:
        # In its own session, so that Ctrl-C reaches only the parent, which stops the child when its work is done.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *cls.command), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, settings: msgspec.Struct) -> str:
        """Waits until the weights are loaded; returns the server's address."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # Through stdin: other users of the machine can read arguments and environment.
        self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
        try:
            async with asyncio.timeout(self.start_timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise EngineError(
                f"{self.product} was not ready after {self.start_timeout_s:.0f} s; {self.status_and_log()}"
            ) from error
        if not line:
            await asyncio.gather(self._process.wait(), self._log_task)
            raise EngineError(f"{self.product} did not start; {self.status_and_log()}")
        return line.decode().strip()

    async def ended_within(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def status_and_log(self) -> str:
        code = self._process.returncode
        state = "it still runs" if code is None else f"it ended with code {code}"
        log = self._log_tail.decode(errors="replace").strip()
        return f"{state}; its log ends with: {log or '(nothing)'}"

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self.ended_within(STOP_TIMEOUT_S) and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._log_task

    async def _keep_log(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            self._log_tail = (self._log_tail + chunk)[-LOG_TAIL_BYTES:]
