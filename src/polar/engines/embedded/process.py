"""The embedded engine's child process as the parent sees it: started, watched, stopped, its last words kept."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import msgspec

from polar.errors import EngineError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
LOG_TAIL_BYTES = 4000


class ServerSettings(msgspec.Struct, frozen=True):
    gguf: str
    parallel: int
    context_tokens: int
    threads: int
    api_key: str
    state_folder: str = ""
    """Where the server saves states of sequences; empty: nowhere."""


class ServerReady(msgspec.Struct, frozen=True):
    address: str


class EmbeddedProcess:
    """One llama.cpp server. Its log is kept in memory, and only the end of it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._log_tail = b""
        self._log_task = asyncio.create_task(self._keep_log())

    @classmethod
    async def spawn(cls) -> EmbeddedProcess:
        # Its own session: Ctrl-C reaches the parent, which stops the child when its work is done.
        command = (sys.executable, "-m", "polar.engines.embedded.server")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, settings: ServerSettings) -> str:
        """The server's address, once its weights are loaded."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # Through stdin, because arguments and environment can be read by others on the machine.
        self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise EngineError(f"not ready after {START_TIMEOUT_S:.0f} s; {self.last_words()}") from error
        if not line:
            await asyncio.gather(self._process.wait(), self._log_task)
            raise EngineError(f"the embedded engine did not start; {self.last_words()}")
        return msgspec.json.decode(line, type=ServerReady).address

    async def ended(self, patience_s: float) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def last_words(self) -> str:
        code = self._process.returncode
        state = "it still runs" if code is None else f"it ended with code {code}"
        log = self._log_tail.decode(errors="replace").strip()
        return f"{state}; its log ends with: {log or '(nothing)'}"

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self.ended(STOP_TIMEOUT_S) and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._log_task

    async def _keep_log(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            self._log_tail = (self._log_tail + chunk)[-LOG_TAIL_BYTES:]
