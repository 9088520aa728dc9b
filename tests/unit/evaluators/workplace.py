"""The least that is a runtime, and the evidence of a session that ran in it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from polar.evaluators.base import Evidence
from polar.runtimes.base import Command, Fetched, Finished, SessionFolders
from polar.runtimes.files.copies import copy_in, copy_out
from polar.runtimes.files.folders import read_file
from polar.types import Strict, TaskRequest, Trajectory, TrajectoryStatistics


class NoOptions(Strict):
    pass


class FolderRuntime:
    """Runs commands in a folder and returns as little of their output as a runtime may."""

    Options: type[BaseModel] = NoOptions

    def __init__(self, folder: Path, *, tail_bytes: int = 100, failure: Exception | None = None) -> None:
        self.folder = folder
        self.commands: list[Command] = []
        self._tail_bytes = tail_bytes
        self._failure = failure

    async def start(self, place: SessionFolders) -> None: ...

    async def exec(self, command: Command) -> Finished:
        self.commands.append(command)
        if self._failure:
            raise self._failure
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], **command.env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        assert process.returncode is not None
        return Finished(process.returncode, self._tail(out), self._tail(err))

    def _tail(self, output: bytes) -> str:
        return output[-self._tail_bytes :].decode()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        if ".." in path:
            raise ValueError(f"{path} leaves the workspace")
        target = self._base(home=home) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if executable else 0o644)

    async def get(self, path: str) -> bytes:
        return read_file(self.folder / path)

    async def put_folder(self, source: Path, path: str) -> None:
        copy_in(source, self.folder / path)

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        return copy_out(self._base(home=home) / path, target, cap_bytes)

    async def kill(self) -> None: ...

    async def stop(self) -> None: ...

    @property
    def workspace(self) -> str:
        return str(self.folder)

    @property
    def home(self) -> str:
        return str(self._base(home=True))

    def _base(self, *, home: bool) -> Path:
        return self.folder.with_name(f"{self.folder.name}-home") if home else self.folder


def evidence(
    runtime: FolderRuntime,
    *,
    own_runtime: FolderRuntime | None = None,
    exit_code: int | None = 0,
    timed_out: bool = False,
    **statistics: Any,
) -> Evidence:
    counted = TrajectoryStatistics.model_validate(statistics).model_dump()
    return Evidence(
        task=TaskRequest(instruction="fix it"),
        runtime=runtime,
        trajectory=Trajectory(session_id="s1", builder="prefix_merging", statistics=counted),
        exit_code=exit_code,
        timed_out=timed_out,
        own_runtime=own_runtime,
    )
