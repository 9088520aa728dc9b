"""The `apptainer` runtime: a rootless container per session, from an image file or a root folder.

An instance is started over the image with a writable layer, and each command enters it. Workspace, home and
temporary files are folders of the node, so files go in and out without a process inside, also after `kill`.
A child that a command leaves in the background lives on after it. Cancelling one command ends the whole instance:
processes inside cannot be told apart by who started them. The next command starts it again, on the same files and
with a new network, so that a door which was opened before leads nowhere any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import msgspec
from pydantic import Field

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.apptainer.command import StartScript, last_line, why_not
from polar.runtimes.apptainer.instance import (
    Init,
    Mount,
    close_user_spaces,
    containing,
    end_instance,
    filtered,
    find_program,
    hold,
    instance_name,
    is_watched,
    make_layer,
    sweep_instances,
    unprivileged,
)
from polar.runtimes.base import HOME, Command, Fetched, Finished, Program, SessionFolders, program_path
from polar.runtimes.files.copies import copied_in, copied_out
from polar.runtimes.files.folders import inside, remove_tree, take_root
from polar.runtimes.files.safe_paths import held_inside, read_inside, write_inside
from polar.runtimes.host.cgroups import Cgroup, Hierarchy
from polar.runtimes.host.cgroups import sweep as sweep_cgroups
from polar.runtimes.host.netns_listener import open_listener
from polar.runtimes.host.spawn import Child, Job, Spawner, complaint_of, to_the_end
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.catalog import root_folder
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, Limits, RuntimeOptions

FOLDERS = ("work", "home", "scratch", "layer", "state")
COPY = "/.polar"
"""Where the workspace is, while it is filled from an image that has one at its place."""
INSTALL = "`make apptainer` installs it"


class ApptainerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=("cpus", "memory_bytes", "pids"),
        contains=("files", "processes", "network"),
        reasons={"disk_bytes": "what a session writes lies in folders of the node, which have no quota"},
    )

    image: str = "polar-base"
    """The path, with a slash in it, of an image file (SIF) or a root folder; or the name of an image that `polar
    image build` made."""
    workspace: str = Field(default="/work", pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$")
    """Its path inside. What the image holds there is what the workspace begins with, unless the task says more."""
    program: str | None = None
    """None: the one on the PATH, or the one that `make apptainer` installs."""


class ApptainerRuntime:
    Options: type[RuntimeOptions] = ApptainerOptions
    notes: tuple[str, ...] = ()

    def __init__(self, options: ApptainerOptions) -> None:
        self._options = options
        self._apptainer: tuple[str, ...] = ()
        self._folders: SessionFolders | None = None
        self._image = Path()
        self._spawner: Spawner | None = None
        self._cgroup: Cgroup | None = None
        self._init: Init | None = None
        self._stopped = False
        self._life = asyncio.Lock()
        self._stopping = asyncio.Lock()
        self._clients: set[int] = set()
        self._kills = 0

    @classmethod
    async def lacking(cls) -> str:
        program = find_program()
        if program is None:
            return f"apptainer is not installed: {INSTALL}"
        if shutil.which("nsenter") is None:
            return "nsenter is not installed: it comes with util-linux"
        return await _trial(program)

    @classmethod
    async def sweep(cls) -> int:
        swept = await sweep_instances()
        await sweep_cgroups()
        return swept

    async def start(self, folders: SessionFolders) -> None:
        """Begins afresh: what a node that died has left of this place is ended and removed first."""
        program = find_program(self._options.program)
        if program is None:
            raise RuntimeFailure(f"there is no program {self._options.program or 'apptainer'}: {INSTALL}")
        self._apptainer, self._image = (program, "--silent"), _image_path(self._options.image)
        if set(":,") & set(str(folders.root.absolute())):
            raise RuntimeFailure(f"apptainer cannot use {folders.root}: there is a ':' or ',' in its path")
        root, has_leftovers = take_root(folders.root, FOLDERS)
        self._folders = msgspec.structs.replace(folders, root=root)
        if has_leftovers:
            await end_instance(_instance_id(self._folders))
        for name in FOLDERS:
            await in_thread(remove_tree, self._folders.root / name)
            (self._folders.root / name).mkdir(mode=0o700)
        make_layer(self._folders.root / "layer")
        folders.logs.mkdir(parents=True, exist_ok=True)
        self._spawner = Spawner(folders.logs, self._options)
        self._cgroup = Cgroup.create(_instance_id(self._folders), _with_pids(self._options.limits))
        await self._fill_workspace()
        await self._running()

    async def listener(self) -> socket.socket | None:
        if self._options.network_mode != "gateway_only":
            return None
        return await open_listener((await self._running()).pid, user=True)

    async def exec(self, command: Command) -> Finished:
        folders = self._alive()
        if not inside(_folder(folders), command.cwd).is_dir():
            raise WorkspaceUnusable(f"the workspace has no folder {command.cwd!r}")
        kills, memory_kills = self._kills, self._memory_kills()
        finished, has_begun = await self._enter(folders, command)
        if not has_begun and self._kills == kills and not await is_watched(_instance_id(folders)):
            await self._kill()  # the instance ended by itself just when the command came
            finished, has_begun = await self._enter(folders, command)
        if not has_begun:
            raise RuntimeFailure(why_not(command.argv[0], finished))
        return msgspec.structs.replace(finished, memory_kills=self._memory_kills() - memory_kills)

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)
        await in_thread(write_inside, _folder(self._started(), home=home), path, content, mode)

    async def get(self, path: str) -> bytes:
        return await in_thread(read_inside, _folder(self._started()), path)

    async def put_folder(self, source: Path, path: str) -> None:
        """Ends first what earlier commands have left: it could put a link to the node's files in the way."""
        folders = self._started()
        if self._init is not None:
            await to_the_end(self._kill())
        await copied_in(source, inside(_folder(folders), path))

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        with held_inside(_folder(self._started(), home=home), path) as found:
            return await copied_out(found, target, cap_bytes)

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
        return program_path(program)

    @property
    def workspace(self) -> str:
        return self._options.workspace

    @property
    def home(self) -> str:
        return HOME

    def _started(self) -> SessionFolders:
        if self._folders is None:
            raise RuntimeFailure("the runtime is not started")
        return self._folders

    def _alive(self) -> SessionFolders:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        return self._started()

    async def _fill_workspace(self) -> None:
        """With the base, or with what the image has there. It is copied: a folder that is laid over another one
        cannot be renamed, which programs do not expect."""
        folders = self._started()
        if folders.base is not None:
            await self.put_folder(folders.base, ".")
        elif self._image.is_dir():
            own = inside(self._image.resolve(), self.workspace.lstrip("/"))
            if own.is_dir():
                await self.put_folder(own, ".")
        else:
            work = Mount(folders.root / "work", COPY)
            copy = ("/bin/sh", "-c", f'[ ! -d "$0" ] || cp -a "$0/." {COPY}/', self.workspace)
            flags = containing([work], network=False)
            argv = (*unprivileged(), *self._apptainer, "exec", *flags, str(self._image), *copy)
            finished = await self._run(argv, "apptainer", self._end)
            if finished.exit_code != 0:
                raise RuntimeFailure(f"cannot read {self.workspace} of the image: {last_line(finished)}")

    async def _running(self) -> Init:
        """The instance, started where it is not alive."""
        folders = self._alive()
        async with self._life:
            if self._init is not None and self._init.lives:
                return self._init
            await self._end()
            pid_file = folders.root / "state" / "pid"
            pid_file.unlink(missing_ok=True)
            flags = (
                *containing(self._mounts(folders), network=self._options.network_mode == "open"),
                *("--home", f"{folders.root / 'home'}:{HOME}", "--workdir", str(folders.root / "scratch")),
                *("--overlay", str(folders.root / "layer"), "--pid-file", str(pid_file)),
            )
            names = (str(self._image), instance_name(_instance_id(folders)))
            argv = (*unprivileged(), *self._apptainer, "instance", "start", *flags, *names)
            finished = await self._run(argv, "apptainer", self._end)
            if finished.exit_code != 0:
                raise RuntimeFailure(f"apptainer cannot start {self._image}: {last_line(finished)}")
            self._init = hold(pid_file)
            await close_user_spaces(self._init.pid)
            return self._init

    async def _enter(self, folders: SessionFolders, command: Command) -> tuple[Finished, bool]:
        """How it ended, and whether it began: one that was killed on its way in counts as begun."""
        init = await self._running()
        env = {
            "LANG": "C.UTF-8",
            "HOME": HOME,
            "TMPDIR": "/tmp",
            **command.env,
            "POLAR_SESSION": folders.session_id,
        }
        with StartScript(env) as start_script, init.entry() as entry:
            closed = filtered(folders.root / "state")
            flags = (*closed, "--cleanenv", "--no-privs", "--pwd", str(Path(self.workspace, command.cwd)))
            instance = f"instance://{instance_name(_instance_id(folders))}"
            argv = (*entry.argv, *self._apptainer, "exec", *flags, instance, *start_script.of(command.argv))
            fds = (*entry.fds, *start_script.fds)
            finished = await self._run(argv, command.log_name, self._kill, fds, command.argv[0])
            return finished, finished.exit_code < 0 or start_script.was_made()

    def _mounts(self, folders: SessionFolders) -> list[Mount]:
        return [
            Mount(folders.root / "work", self.workspace),
            *(Mount(program.source, self.program(program), read_only=True) for program in folders.programs),
        ]

    async def _run(
        self,
        argv: tuple[str, ...],
        log_name: str,
        end: Callable[[], Awaitable[None]],
        pass_fds: tuple[int, ...] = (),
        program: str = "apptainer",
    ) -> Finished:
        """One run of Apptainer, in the session's cgroup; `end` is its end when it is cancelled."""
        folders, pids = self._started(), set[int]()
        assert self._spawner is not None

        def began(pid: int) -> None:
            pids.add(pid)
            self._clients.add(pid)

        async def break_off(process: Child | None) -> None:
            await end()

        try:
            return await self._spawner.run(
                Job(
                    self._cgroup.entering(argv) if self._cgroup is not None else argv,
                    self._environment(folders),
                    folders.root / "state",
                    log_name,
                    break_off,
                    began,
                    pass_fds,
                    program,
                )
            )
        finally:
            self._clients -= pids

    def _memory_kills(self) -> int:
        return self._cgroup.memory_kills() if self._cgroup is not None else 0

    def _environment(self, folders: SessionFolders) -> dict[str, str]:
        """Of the program itself. Nothing it reads or writes is the user's own."""
        state = str(folders.root / "state")
        folders = ("HOME", "APPTAINER_CONFIGDIR", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR")
        return {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", **dict.fromkeys(folders, state)}

    async def _kill(self) -> None:
        """Twice, because a start may be under way: the first ends it, the second what it has made."""
        self._kills += 1
        if self._init is not None:
            self._init.kill()
        await end_instance(_instance_id(self._started()), self._clients)
        async with self._life:
            await self._end()

    async def _end(self) -> None:
        """Init first: with it dies all that is inside, whatever it has made of itself."""
        init, self._init = self._init, None
        if init is not None:
            init.kill()
            init.close()
        await end_instance(_instance_id(self._started()), self._clients)
        if self._cgroup is not None:  # what the instance's own programs have left, should one have died early
            self._cgroup.kill()

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._stopping:
            await self._kill()
            if self._spawner is not None:
                await self._spawner.close()
            if self._cgroup is not None:
                await self._cgroup.remove()
            await in_thread(remove_tree, folders.root)


def _folder(folders: SessionFolders, *, home: bool = False) -> Path:
    return folders.root / ("home" if home else "work")


def _instance_id(folders: SessionFolders) -> str:
    """Told apart from another place of the same session."""
    return f"{folders.session_id}-{hashlib.sha256(os.fsencode(folders.root)).hexdigest()[:8]}"


def _with_pids(limits: Limits) -> Limits:
    """Nobody needs more, and a session that forks without end takes the node with it."""
    default = Limits(pids=DEFAULT_PIDS)
    can = limits.pids is None and not Hierarchy().lacking(default)
    return limits.model_copy(update={"pids": DEFAULT_PIDS}) if can else limits


def _image_path(image: str) -> Path:
    path = Path(image).expanduser()
    return path.absolute() if "/" in image and path.is_file() else root_folder(image)


async def _trial(program: str) -> str:
    """Runs `true` in the base image where it is there, else in a user namespace, which is the other half."""
    try:
        image = str(root_folder("polar-base"))
        argv = (*unprivileged(), program, "--silent", "exec", *containing((), network=False), image, "true")
    except RuntimeFailure:
        argv = ("unshare", "--user", "true")
    complaint = await complaint_of(*argv)
    return f"apptainer does not work here: {complaint}" if complaint else ""
