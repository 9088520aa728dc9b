"""The `local` runtime: plain processes in a folder of the node. It contains nothing.

It gives a session its own workspace, home and temporary folder, a small environment, capped logs, and an end that
leaves no process. It does not keep a process from reading the node's files or from using its network.

A child that a command leaves in the background lives on after the command, so a harness may start a server in one
step and use it in the next. It ends with `kill` or `stop`, or when the command that started it is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import Command, Fetched, Finished, Program, SessionFolders
from polar.runtimes.builtin import BuiltinRuntime, file_mode
from polar.runtimes.files.copies import copied_in, copied_out
from polar.runtimes.files.folders import inside, read_file, write_file
from polar.runtimes.host.processes import OWNER, Family, end, owner, sweep_orphans
from polar.runtimes.host.spawn import Job
from polar.runtimes.host.supervisor import Launcher, View
from polar.runtimes.host.threads import in_thread
from polar.runtimes.local.command import LocalCommand
from polar.runtimes.local.views import mount_point
from polar.runtimes.options import Capabilities, RuntimeOptions

FOLDERS = ("work", "home", "tmp")
MARKER = "POLAR_PLACE"
"""A variable in the environment of all that a command starts: the session's root folder and the command's
number."""
INHERITED = ("PATH", "LANG", "LC_ALL")
UNEQUAL_PATHS = "each session sees its workspace at a different path, so prompts of a task's samples may differ"
CONTAINS_NOTHING = "the local runtime contains nothing; bubblewrap, docker and apptainer do"
OTHERS = "use bubblewrap, docker or apptainer"


class LocalOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("open",),
        reasons={
            "network": CONTAINS_NOTHING,
            "limits": CONTAINS_NOTHING,
            "mounts": f"it has the node's own files; {OTHERS}",
            "prepare_network": f"its network is always open; {OTHERS}",
            "intercept": f"it has the node's own network and files; {OTHERS}",
        },
    )

    same_paths: bool = True
    """All sessions see workspace, home and temporary folder at the same paths, where the kernel permits it. If the
    node's user is not root, programs that run as another user (sudo) then do not work in a session."""


class LocalRuntime(BuiltinRuntime[LocalOptions]):
    Options: type[RuntimeOptions] = LocalOptions

    def __init__(self, options: LocalOptions) -> None:
        super().__init__(options)
        self._numbers = itertools.count(1)
        self._launcher: Launcher | None = None
        self._view: View | None = None
        self._commands: set[LocalCommand] = set()
        """Those that may have living processes."""

    @classmethod
    async def lacking(cls) -> str:
        return ""

    @classmethod
    async def sweep(cls) -> int:
        return await sweep_orphans()

    async def start(self, folders: SessionFolders) -> None:
        await self._take_folders(folders, FOLDERS)
        self._launcher = folders.launcher or (Launcher() if Launcher.is_possible() else None)
        try:
            self._view = await self._tried_view()
        except (RuntimeFailure, OSError) as error:
            self.notes = (f"{UNEQUAL_PATHS}: {error}",)
        if folders.base is not None:
            await self.put_folder(folders.base, ".")

    async def _end_leftovers(self, folders: SessionFolders) -> None:
        await end(Family(f"{MARKER}={folders.root}:".encode()), grace_s=0)

    async def _tried_view(self) -> View:
        if not self._options.same_paths:
            raise RuntimeFailure("the option same_paths is off")
        if self._launcher is None:
            raise RuntimeFailure("only Linux has mount namespaces")
        target = mount_point()
        if reason := await self._launcher.why_no_view(target):
            raise RuntimeFailure(f"the kernel permits no mount namespace ({reason})")
        return View(self._started().root, target)

    async def listener(self) -> None:
        """The session shares the node's network and reaches the gateway at its address."""

    async def exec(self, command: Command) -> Finished:
        folders, number = self._alive(), next(self._numbers)
        entry = LocalCommand(self._marker(folders, number), self._launcher, self._view)
        job = Job(
            command.argv,
            self._environment(folders, number, command),
            self._folder(folders, command.cwd),
            command.log_name,
            partial(entry.break_off, grace_s=self._options.kill_grace_s),
            start=entry.start,
        )
        self._commands = {known for known in self._commands if not known.is_empty} | {entry}
        try:
            return await self._run_job(job)
        finally:
            entry.exited()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = file_mode(home=home, executable=executable)
        await in_thread(lambda: write_file(self._inside(path, home=home), content, mode))

    async def get(self, path: str) -> bytes:
        return await in_thread(lambda: read_file(self._inside(path)))

    async def put_folder(self, source: Path, path: str) -> None:
        await copied_in(source, self._inside(path))

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        return await copied_out(self._inside(path, home=home), target, cap_bytes)

    def program(self, program: Program) -> str:
        return str(program.source)

    @property
    def workspace(self) -> str:
        return self._seen("work")

    @property
    def home(self) -> str:
        return self._seen("home")

    def _seen(self, folder: str) -> str:
        """Its path for processes inside."""
        return f"{self._view.target if self._view is not None else self._started().root}/{folder}"

    def _inside(self, path: str, *, home: bool = False) -> Path:
        """Its path for the node."""
        return inside(self._started().root / ("home" if home else "work"), path, self._view)

    def _folder(self, folders: SessionFolders, path: str) -> Path:
        cwd = self._inside(path)
        if not cwd.is_dir():
            raise WorkspaceUnusable(f"the workspace has no folder {path!r}")
        if path == ".":
            return Path(self.workspace)
        return Path(self.workspace, cwd.relative_to(folders.root / "work"))

    def _environment(self, folders: SessionFolders, number: int, command: Command) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        marker, _, value = self._marker(folders, number).partition("=")
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            **inherited,
            "HOME": self.home,
            "TMPDIR": self._seen("tmp"),
            **command.env,
            "POLAR_SESSION": self._session_id,
            OWNER: owner(),
            marker: value,
        }

    def _marker(self, folders: SessionFolders, number: int) -> str:
        return f"{MARKER}={folders.root}:{number}"

    async def _kill(self) -> None:
        grace_s = self._options.kill_grace_s
        await asyncio.gather(*(command.end(grace_s) for command in tuple(self._commands)))

    async def _release(self, folders: SessionFolders) -> None:
        if self._launcher is not None and folders.launcher is None:
            await self._launcher.close()
