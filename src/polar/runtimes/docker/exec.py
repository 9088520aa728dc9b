"""A command in a container: its output taken apart into the two logs, its exit code asked for afterwards."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished
from polar.runtimes.docker.api import PIECE_BYTES, DockerApi, DockerRefused
from polar.runtimes.host.cgroups import Cgroup
from polar.runtimes.host.output import CappedLog

STDERR = 2
KILLED = 137
CANNOT_START = (125, 126, 127)
"""The engine's own fault or the container's end, a program that cannot be run, and one that is not there."""
COMPLAINT = re.compile(r"OCI runtime |cannot exec |Error: [^\n]*\bOCI ")
"""Of an engine, in the place of the output. It never had a process then; podman has forgotten it in any case."""
COMPLAINT_BYTES = 1000
ARGUMENT_BYTES = 128 * 1024
"""The longest argument that Linux takes."""
OUT_OF_MEMORY = b"\n[polar: killed: the session is over its limit of memory]\n"


class NotStarted(RuntimeFailure):
    """Nothing of the command has run."""


class Logs(msgspec.Struct, frozen=True):
    out: CappedLog
    err: CappedLog

    def close(self) -> None:
        self.out.close()
        self.err.close()


class Exec:
    """One command, created and not yet begun."""

    def __init__(self, api: DockerApi, exec_id: str, argv: tuple[str, ...]) -> None:
        self._api = api
        self._path = f"/exec/{exec_id}"
        self._program = argv[0]

    @classmethod
    async def create(
        cls, api: DockerApi, container_id: str, argv: tuple[str, ...], env: dict[str, str], cwd: str
    ) -> Exec:
        body: dict[str, Any] = {
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": cwd,
        }
        try:
            made = await api.call("POST", f"/containers/{container_id}/exec", body=body)
        except DockerRefused as error:
            raise cannot_start(argv[0], str(error)) from error
        return cls(api, made["Id"], argv)

    async def run(self, logs: Logs, group: Cgroup) -> Finished:
        memory_kills = group.memory_kills()
        try:
            async with self._api.request(
                "POST", f"{self._path}/start", body={"Detach": False, "Tty": False}, limit_s=None
            ) as response:
                beginning = await _take_apart(response.content, logs)
        except DockerRefused as error:
            raise cannot_start(self._program, str(error)) from error
        ended = await self._api.call("GET", f"{self._path}/json")
        exit_code, told = int(ended["ExitCode"] or 0), beginning.decode(errors="replace")
        if exit_code in CANNOT_START and not ended["Pid"] and COMPLAINT.match(told):
            raise cannot_start(self._program, told)
        if exit_code < 0:  # podman, of a command that ended with its container
            exit_code = KILLED
        memory_kills = group.memory_kills() - memory_kills
        if exit_code == KILLED and memory_kills:
            logs.err.write(OUT_OF_MEMORY)
        return Finished(exit_code, logs.out.tail(), logs.err.tail(), memory_kills)


def check_words(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """What Linux refuses is seen here: from inside it looks like a program that ended."""
    words = (*argv, *(f"{name}={value}" for name, value in env.items()))
    if any("\0" in word for word in words):
        raise cannot_start(argv[0], "embedded null byte")
    if any(len(word.encode(errors="surrogateescape")) >= ARGUMENT_BYTES for word in words):
        raise cannot_start(argv[0], "argument list too long")


def cannot_start(program: str, why: str) -> NotStarted:
    if "no such file or directory" in why or "executable file not found" in why:
        why = "there is no such program"
    return NotStarted(f"cannot start {program!r}: {why.strip()}")


async def _take_apart(content: aiohttp.StreamReader, logs: Logs) -> bytes:
    """Both outputs come in one stream, in frames: which of them, three empty bytes, a length, the bytes.
    Gives how it began, both together."""
    beginning = b""
    while True:
        try:
            header = await content.readexactly(8)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise RuntimeFailure("the engine has broken off in the middle of the output") from error
            return beginning
        log = logs.err if header[0] == STDERR else logs.out
        left_bytes = int.from_bytes(header[4:], "big")
        while left_bytes:
            piece = await content.read(min(left_bytes, PIECE_BYTES))
            if not piece:
                raise RuntimeFailure("the engine has broken off in the middle of the output")
            log.write(piece)
            beginning = (beginning + piece)[:COMPLAINT_BYTES] if len(beginning) < COMPLAINT_BYTES else beginning
            left_bytes -= len(piece)
