"""The runtime port. A runtime is one session's place: a workspace, a home, and processes in them.

Stopping is total: when `stop` returns, nothing started in the runtime is alive.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Protocol

import msgspec

from polar.runtimes.host.supervisor import Launcher
from polar.runtimes.options import RuntimeOptions


class Program(msgspec.Struct, frozen=True):
    """A folder of the node that the session may read and not write: a harness, the Node program it needs."""

    name: str
    """What a runtime with a file system of its own calls it; `Runtime.program` says where."""
    source: Path


HOME = "/home/polar"
"""Of a session whose runtime has a file system of its own."""


def program_path(program: Program) -> str:
    """Where a program is in such a runtime."""
    return f"/opt/polar/{program.name}"


class SessionFolders(msgspec.Struct, frozen=True):
    """The folders of a session on the node, made by the runtime under `root`."""

    session_id: str
    root: Path
    """Holds what the session writes; gone after `stop`."""
    logs: Path
    """Stays after `stop`."""
    base: Path | None = None
    """A folder whose content the workspace begins with. It is shared: the session never changes it. A runtime lays
    the workspace over it where it can and copies it where it cannot."""
    programs: tuple[Program, ...] = ()
    launcher: Launcher | None = None
    """The node's, for a runtime that starts its commands with it. None: the runtime starts one of its own."""


class Command(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """All of it: nothing of the node's own environment reaches the process except PATH and the locale."""
    log_name: str = "command"
    """Output goes to `<logs>/<log_name>.stdout` and `.stderr`, each up to the runtime's cap; without output there
    is no file."""
    cwd: str = "."
    """Relative to the workspace."""


class Finished(msgspec.Struct, frozen=True):
    exit_code: int
    """Negative: ended by that signal, where the runtime sees it. In a container it is 128 and the signal, as a
    shell has it. Both mean the same."""
    stdout_tail: str = ""
    """The end of the output as text, for messages and patterns."""
    stderr_tail: str = ""
    memory_kills: int = 0
    """Processes of the session that the kernel killed at its memory limit while the command ran."""


class Fetched(msgspec.Struct, frozen=True):
    """What came out of a runtime."""

    files: int = 0
    size_bytes: int = 0
    left_out: tuple[str, ...] = ()
    """`path: why` of each thing that stayed behind: over the cap, a link that leads outside, not a plain file."""


class Runtime(Protocol):
    Options: type[RuntimeOptions]

    @property
    def notes(self) -> tuple[str, ...]:
        """What this machine kept the runtime from giving, for the session's result."""
        ...

    @classmethod
    async def lacking(cls) -> str:
        """What this machine lacks for the runtime, and how to get it; empty: nothing."""
        ...

    @classmethod
    async def sweep(cls) -> int:
        """Ends and removes what nodes that died have left of this runtime on this machine. How much that was."""
        ...

    async def start(self, folders: SessionFolders) -> None: ...

    async def listener(self) -> socket.socket | None:
        """A socket that listens on loopback inside the runtime's own network, for the gateway to serve. None: the
        runtime shares the node's network, or has none to call a model from."""
        ...

    async def exec(self, command: Command) -> Finished:
        """Runs to the end. When cancelled, everything the command started is killed first. Raises
        `WorkspaceUnusable` where there is no folder to run it in."""
        ...

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        """Writes a file, relative to the workspace or the home; a path that leaves it is refused. Raises
        `WorkspaceUnusable` where what stands there is in the way. Never waits for a pipe."""
        ...

    async def get(self, path: str) -> bytes:
        """Reads a file of the workspace; `NoSuchFile` where there is none, or something that is not a file."""
        ...

    async def put_folder(self, source: Path, path: str) -> None:
        """Copies a folder of the node, links and modes kept, over what stands at `path` of the workspace."""
        ...

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        """Copies a file or folder out to `target`, which is not there yet. What comes out is safe to read: plain
        files and folders, and links that stay inside. FileNotFoundError where there is nothing at `path`."""
        ...

    async def kill(self) -> None:
        """Ends every process of the runtime and keeps its files; another `exec` may follow."""
        ...

    async def stop(self) -> None:
        """Ends every process and removes workspace and home. May be called twice."""
        ...

    def program(self, program: Program) -> str:
        """Where processes inside find one of the session's programs."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path as processes inside see it."""
        ...

    @property
    def home(self) -> str: ...
