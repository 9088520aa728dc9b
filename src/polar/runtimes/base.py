"""The runtime port. A runtime holds one session: a workspace, a home, and the processes that run in them.

When `stop` returns, nothing that was started in the runtime is alive.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from polar.config import PermitConfig
from polar.runtimes.host.supervisor import Launcher
from polar.runtimes.options import RuntimeOptions

HOME = "/home/polar"
"""The session's home in a runtime with a file system of its own."""


class Program(msgspec.Struct, frozen=True):
    """A folder of the node that the session may read and not write: a harness, or the Node.js it needs."""

    name: str
    source: Path

    @property
    def mount_point(self) -> str:
        """Where it is in a runtime with a file system of its own."""
        return f"/opt/polar/{self.name}"


class SessionFolders(msgspec.Struct, frozen=True):
    """A session's folders on the node. The runtime creates what is under `root`."""

    session_id: str
    root: Path
    """Holds what the session writes; `stop` removes it."""
    logs: Path
    """Stays after `stop`."""
    base: Path | None = None
    """A folder whose content the workspace starts with. Sessions share it and never change it: a runtime mounts an
    overlay over it where it can, and copies it where it cannot."""
    programs: tuple[Program, ...] = ()
    launcher: Launcher | None = None
    """The node's launcher, for a runtime that starts its commands with one. None: the runtime starts its own."""
    permits: PermitConfig = PermitConfig()
    """What the operator of the node permits tasks to ask for."""


class Command(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """The whole environment: of the node's own, only PATH and the locale reach the process."""
    log_name: str = "command"
    """Output goes to `<logs>/<log_name>.stdout` and `.stderr`, each up to the runtime's cap; without output there
    is no file."""
    cwd: str = "."
    """Relative to the workspace."""


class Finished(msgspec.Struct, frozen=True):
    """How a command ended."""

    exit_code: int
    """A command that a signal ended has the negative signal number, or 128 plus the signal in a container."""
    stdout_tail: str = ""
    """The end of the output as text, for messages and patterns."""
    stderr_tail: str = ""
    memory_kills: int = 0
    """Processes of the session that the kernel killed at its memory limit while the command ran."""


class Fetched(msgspec.Struct, frozen=True):
    """What was copied out of a runtime."""

    files: int = 0
    size_bytes: int = 0
    left_out: tuple[str, ...] = ()
    """`path: why` of each entry that was not copied: over the cap, a link that leads outside, not a plain file."""


class Interception(NamedTuple):
    """Names that lead to the session's own loopback, for the gateway to serve there."""

    names: tuple[str, ...]
    listener: socket.socket
    """Listens on port 443 of the session's loopback."""
    context: ssl.SSLContext
    """With a certificate for the names, signed by the session's own authority."""
    env: dict[str, str]
    """For the harness: variables that make its programs trust that authority."""


class Runtime(Protocol):
    Options: type[RuntimeOptions]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the runtime could not provide on this machine, for the session's result."""
        ...

    @classmethod
    async def lacking(cls) -> str:
        """What this machine lacks for the runtime, and how to get it; empty: nothing."""
        ...

    @classmethod
    async def sweep(cls) -> int:
        """Ends and removes what dead nodes left of this runtime on this machine. Returns how many leftovers."""
        ...

    async def start(self, folders: SessionFolders) -> None: ...

    async def listener(self) -> socket.socket | None:
        """A socket that listens on loopback inside the runtime's own network, for the gateway to serve. None: the
        runtime shares the node's network, or has no network to call a model from."""
        ...

    async def exec(self, command: Command) -> Finished:
        """Runs a command to its end. When cancelled, kills everything the command started first. Raises
        `WorkspaceUnusable` if the working folder does not exist."""
        ...

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        """Writes a file, relative to the workspace or the home; refuses a path that leaves it. Raises
        `WorkspaceUnusable` if something else is in the way. Never waits for a pipe."""
        ...

    async def get(self, path: str) -> bytes:
        """Reads a file of the workspace. Raises `NoSuchFile` if there is none, or if it is not a plain file."""
        ...

    async def put_folder(self, source: Path, path: str) -> None:
        """Copies a folder of the node over what is at `path` of the workspace; keeps links and modes."""
        ...

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        """Copies a file or folder out to `target`, which must not exist. The copy is safe to read: plain files,
        folders, and links that stay inside. Raises FileNotFoundError if there is nothing at `path`."""
        ...

    async def kill(self) -> None:
        """Ends every process of the runtime and keeps its files; another `exec` may follow."""
        ...

    async def stop(self) -> None:
        """Ends every process and removes workspace and home. May be called twice."""
        ...

    def program(self, program: Program) -> str:
        """The path at which processes inside find one of the session's programs."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path as processes inside see it."""
        ...

    @property
    def home(self) -> str: ...


@runtime_checkable
class PreparingRuntime(Protocol):
    """A runtime that may open the network for the prepare steps only (`RuntimeOptions.prepare_network`)."""

    async def prepared(self) -> None:
        """Called once, after the last prepare step. Ends every process if only these steps had the network, and
        closes it."""
        ...


@runtime_checkable
class AdoptableRuntime(Protocol):
    """A runtime that can be started before it is known which session will use it."""

    def adopt(self, session_id: str, logs: Path) -> None:
        """Gives it to a session. It keeps its folders, except for the logs."""
        ...


@runtime_checkable
class InterceptingRuntime(Protocol):
    """A runtime that can lead names of model providers to the session (`RuntimeOptions.intercept`)."""

    async def interception(self) -> Interception | None:
        """Called once, after `listener`. None: the options name no host."""
        ...
