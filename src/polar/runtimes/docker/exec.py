"""A command in a container: splits its output into two logs, then fetches its exit code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished
from polar.runtimes.docker.api import PIECE_BYTES, DockerApi, DockerRefused
from polar.runtimes.host.cgroups import Cgroup
from polar.runtimes.host.output import command_log
from polar.runtimes.options import RuntimeOptions

STDERR = 2
KILLED = 137
CANNOT_START = (125, 126, 127)
"""An error of the Docker Engine or the container's end; a program that cannot be run; one that is missing."""
COMPLAINT = re.compile(r"OCI runtime |cannot exec |Error: [^\n]*\bOCI ")
"""A Docker Engine's error message in place of the output. The command has no process id then; Podman has always
forgotten the id by then."""
COMPLAINT_BYTES = 1000
ARGUMENT_BYTES = 128 * 1024
"""The longest argument that Linux accepts."""
CUT_OFF = "the Docker Engine closed the connection in the middle of the output"
OUT_OF_MEMORY = b"\n[polar: killed: the session is over its memory limit]\n"


class NotStarted(RuntimeFailure):
    """The command did not run."""


class Logs:
    """The two logs of a command."""

    def __init__(self, folder: Path, name: str, options: RuntimeOptions) -> None:
        self.out = command_log(folder, name, "stdout", options)
        self.err = command_log(folder, name, "stderr", options)

    def close(self) -> None:
        self.out.close()
        self.err.close()


class Exec:
    """One command, created and not yet started."""

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
                start = await _split(response.content, logs)
        except DockerRefused as error:
            raise cannot_start(self._program, str(error)) from error
        ended = await self._api.call("GET", f"{self._path}/json")
        exit_code, output = int(ended["ExitCode"] or 0), start.decode(errors="replace")
        if exit_code in CANNOT_START and not ended["Pid"] and COMPLAINT.match(output):
            raise cannot_start(self._program, output)
        if exit_code < 0:  # Podman, for a command that ended with its container
            exit_code = KILLED
        memory_kills = group.memory_kills() - memory_kills
        if exit_code == KILLED and memory_kills:
            logs.err.write(OUT_OF_MEMORY)
        return Finished(exit_code, logs.out.tail(), logs.err.tail(), memory_kills)


def check_words(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Refuses what Linux would refuse: in a container it would look like a program that ended."""
    words = (*argv, *(f"{name}={value}" for name, value in env.items()))
    if any("\0" in word for word in words):
        raise cannot_start(argv[0], "embedded null byte")
    if any(len(word.encode(errors="surrogateescape")) >= ARGUMENT_BYTES for word in words):
        raise cannot_start(argv[0], "argument list too long")


def cannot_start(program: str, why: str) -> NotStarted:
    if "no such file or directory" in why or "executable file not found" in why:
        why = "there is no such program"
    return NotStarted(f"cannot start {program!r}: {why.strip()}")


async def _split(content: aiohttp.StreamReader, logs: Logs) -> bytes:
    """Both outputs come in one stream of frames: the output's number, three empty bytes, a length, the data.
    Returns the start of both together."""
    start = b""
    while True:
        try:
            header = await content.readexactly(8)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise RuntimeFailure(CUT_OFF) from error
            return start
        log = logs.err if header[0] == STDERR else logs.out
        left_bytes = int.from_bytes(header[4:], "big")
        while left_bytes:
            piece = await content.read(min(left_bytes, PIECE_BYTES))
            if not piece:
                raise RuntimeFailure(CUT_OFF)
            log.write(piece)
            start = (start + piece)[:COMPLAINT_BYTES] if len(start) < COMPLAINT_BYTES else start
            left_bytes -= len(piece)
