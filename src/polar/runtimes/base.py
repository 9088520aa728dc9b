"""The runtime port. A runtime is one session's place: a workspace, a home, and processes in them.

Stopping is total: when `stop` returns, nothing started in the runtime is alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel


class Place(msgspec.Struct, frozen=True):
    """The folders of a session on the node, made by the runtime under `root`."""

    session_id: str
    root: Path
    """Holds the workspace and the home; gone after `stop`."""
    logs: Path
    """Stays after `stop`."""


class Command(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """All of it: nothing of the node's own environment reaches the process except PATH and the locale."""
    log_name: str = "command"
    """Output goes to `<logs>/<log_name>.stdout` and `.stderr`, each up to the runtime's cap."""
    cwd: str = "."
    """Relative to the workspace."""


class Finished(msgspec.Struct, frozen=True):
    exit_code: int
    """Negative: ended by that signal."""
    stdout_tail: str = ""
    """The end of the output as text, for messages and patterns."""
    stderr_tail: str = ""


class Runtime(Protocol):
    Options: type[BaseModel]

    async def start(self, place: Place) -> None: ...

    async def exec(self, command: Command) -> Finished:
        """Runs to the end. When cancelled, everything the command started is killed first."""
        ...

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        """Writes a file, relative to the workspace or the home; a path that leaves it is refused."""
        ...

    async def get(self, path: str) -> bytes:
        """Reads a file of the workspace; FileNotFoundError where there is none."""
        ...

    async def kill(self) -> None:
        """Ends every process of the runtime and keeps its files."""
        ...

    async def stop(self) -> None:
        """Ends every process and removes workspace and home. May be called twice."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path as processes inside see it."""
        ...

    @property
    def home(self) -> str: ...
