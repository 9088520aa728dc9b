"""The `local` runtime: plain processes in a folder of their own. It contains nothing, and says so.

It gives a session its own workspace, home and temporary folder, a small environment, logs with a cap, and a
total end; it does not keep a process from reading the node's files or using its network.

A child that a command leaves in the background lives on after the command: a harness may start a server in one
step and use it in the next. It ends with `kill` or `stop`, or when the command that started it is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import Command, Fetched, Finished, Program, SessionFolders
from polar.runtimes.files.copies import copied_in, copied_out
from polar.runtimes.files.folders import inside, read_file, remove_tree, take_root, write_file
from polar.runtimes.host.processes import OWNER, Family, end, owner, sweep_orphans
from polar.runtimes.host.spawn import Job, Spawner, to_the_end
from polar.runtimes.host.supervisor import Launcher, View
from polar.runtimes.host.threads import in_thread
from polar.runtimes.local.command import LocalCommand
from polar.runtimes.local.views import mount_point
from polar.runtimes.options import Capabilities, RuntimeOptions

FOLDERS = ("work", "home", "tmp")
MARKER = "POLAR_PLACE"
INHERITED = ("PATH", "LANG", "LC_ALL")
UNEQUAL_PATHS = "each session sees its workspace at a path of its own, so prompts of a task's samples may differ"
CONTAINS_NOTHING = "the local runtime contains nothing; bubblewrap, docker and apptainer do"


class LocalOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("open",), reasons={"network": CONTAINS_NOTHING, "limits": CONTAINS_NOTHING}
    )

    same_paths: bool = True
    """All sessions see workspace, home and temporary folder at the same paths, where the kernel lets them. Where
    the node's user is not root, programs that run as another user (sudo) do not work in a session then."""


class LocalRuntime:
    Options: type[RuntimeOptions] = LocalOptions

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._folders: SessionFolders | None = None
        self._spawner: Spawner | None = None
        self._stopped = False
        self._stopping = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._launcher: Launcher | None = None
        self._view: View | None = None
        self.notes: tuple[str, ...] = ()
        self._commands: set[LocalCommand] = set()
        """Those of which something may be alive."""

    @classmethod
    async def lacking(cls) -> str:
        return ""

    @classmethod
    async def sweep(cls) -> int:
        return await sweep_orphans()

    async def start(self, folders: SessionFolders) -> None:
        """Begins afresh: what a node that died has left of this place is ended and removed first."""
        await to_the_end(self._take_folders(folders))
        self._spawner = Spawner(folders.logs, self._options)
        self._launcher = folders.launcher or (Launcher() if Launcher.is_possible() else None)
        await self._find_view()
        if folders.base is not None:
            await self.put_folder(folders.base, ".")

    async def _take_folders(self, folders: SessionFolders) -> None:
        root, has_leftovers = await in_thread(_take, folders)
        self._folders = msgspec.structs.replace(folders, root=root)
        if has_leftovers:
            await end(Family(f"{MARKER}={root}:".encode(), leaders=frozenset()), grace_s=0)
            await in_thread(_make_folders, root)

    async def _find_view(self) -> None:
        try:
            self._view, reason = await self._tried_view(), ""
        except (RuntimeFailure, OSError) as error:
            reason = str(error)
        if reason:
            self.notes = (f"{UNEQUAL_PATHS}: {reason}",)

    async def _tried_view(self) -> View:
        if not self._options.same_paths:
            raise RuntimeFailure("the option same_paths is off")
        if self._launcher is None:
            raise RuntimeFailure("only Linux has mount namespaces")
        target = mount_point()
        if reason := await self._launcher.why_no_view(target):
            raise RuntimeFailure(f"the kernel gives no mount namespace ({reason})")
        return View(self._started().root, target)

    async def listener(self) -> None:
        """The network is the node's, and so is the gateway's address."""

    async def exec(self, command: Command) -> Finished:
        folders, number = self._alive(), next(self._numbers)
        assert self._spawner is not None
        entry = LocalCommand(self._mark(folders, number), self._launcher, self._view)

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
            return await self._spawner.run(job)
        finally:
            entry.exited()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)
        await in_thread(lambda: write_file(self._inside(path, home=home), content, mode))

    async def get(self, path: str) -> bytes:
        return await in_thread(lambda: read_file(self._inside(path)))

    async def put_folder(self, source: Path, path: str) -> None:
        await copied_in(source, self._inside(path))

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        return await copied_out(self._inside(path, home=home), target, cap_bytes)

    async def kill(self) -> None:
        if self._folders is not None:
            await to_the_end(self._kill())

    async def stop(self) -> None:
        self._stopped = True
        if self._spawner is not None:
            self._spawner.refuse()
        if self._folders is not None:
            await to_the_end(self._stop(self._folders))

    def program(self, program: Program) -> str:
        return str(program.source)

    @property
    def workspace(self) -> str:
        return self._seen("work")

    @property
    def home(self) -> str:
        return self._seen("home")

    def _seen(self, folder: str) -> str:
        """As processes inside see it."""
        return f"{self._view.target if self._view is not None else self._started().root}/{folder}"

    def _inside(self, path: str, *, home: bool = False) -> Path:
        """As the node sees it."""
        return inside(self._started().root / ("home" if home else "work"), path, self._view)

    def _started(self) -> SessionFolders:
        if self._folders is None:
            raise RuntimeFailure("the runtime is not started")
        return self._folders

    def _alive(self) -> SessionFolders:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        return self._started()

    def _folder(self, folders: SessionFolders, path: str) -> Path:
        cwd = self._inside(path)
        if not cwd.is_dir():
            raise WorkspaceUnusable(f"the workspace has no folder {path!r}")
        if path == ".":
            return Path(self.workspace)
        return Path(self.workspace, cwd.relative_to(folders.root / "work"))

    def _environment(self, folders: SessionFolders, number: int, command: Command) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        marker, _, value = self._mark(folders, number).partition("=")
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            **inherited,
            "HOME": self.home,
            "TMPDIR": self._seen("tmp"),
            **command.env,
            "POLAR_SESSION": folders.session_id,
            OWNER: owner(),
            marker: value,
        }

    def _mark(self, folders: SessionFolders, number: int) -> str:
        """Stands in the environment of all that a command starts; its beginning is the same for the place."""
        return f"{MARKER}={folders.root}:{number}"

    async def _kill(self) -> None:
        grace_s = self._options.kill_grace_s
        await asyncio.gather(*(command.end(grace_s) for command in tuple(self._commands)))

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._stopping:
            await self._kill()
            if self._spawner is not None:
                await self._spawner.close()
            if self._launcher is not None and folders.launcher is None:
                await self._launcher.close()
            await in_thread(remove_tree, folders.root)


def _take(folders: SessionFolders) -> tuple[Path, bool]:
    """Where the place really is, and whether something is left in it whose processes have to end first."""
    root, has_leftovers = take_root(folders.root, FOLDERS)
    folders.logs.mkdir(parents=True, exist_ok=True)
    if not has_leftovers:
        _make_folders(root)
    return root, has_leftovers


def _make_folders(root: Path) -> None:
    for name in FOLDERS:
        remove_tree(root / name)
        (root / name).mkdir(mode=0o700)
