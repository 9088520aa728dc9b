"""A real llama.cpp server at a fixed port, as an operator would run one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ports import port_to_come_back_to
from waiting import hang_limit

CONTEXT_TOKENS = 768


class LlamaProgram:
    """One that can be killed and started again at the same address."""

    def __init__(self, gguf: Path) -> None:
        self._gguf = gguf
        self._port = port_to_come_back_to()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(self._gguf), str(self._port), str(CONTEXT_TOKENS)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with hang_limit():
            assert await self._process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()


PROGRAM = """
import os, sys, threading
import xllamacpp
from polar.engines.embedded.process import ServerSettings
from polar.engines.embedded.server import server_parameters

gguf, port, context = sys.argv[1:]
settings = ServerSettings(gguf, parallel=2, context_tokens=int(context), threads=1, api_key="")
parameters = server_parameters(settings)
parameters.port, parameters.api_keys = int(port), []
replies = os.dup(1)
os.dup2(2, 1)
server = xllamacpp.Server(parameters)
os.write(replies, b"ready\\n")
threading.Event().wait()
"""
