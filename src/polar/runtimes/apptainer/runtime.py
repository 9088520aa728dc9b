"""The `apptainer` runtime: a rootless container per session, from an image file or a root folder.

An instance runs over the image with a writable layer, and each command enters it. Workspace, home and temporary
files are folders of the node, so files go in and out without a process inside, even after `kill`. A child that a
command leaves in the background lives on after it. Cancelling a command ends the whole instance: processes inside
cannot be told apart by the command that started them. The next command starts it again with the same files and a
new network, so a listener opened before is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import msgspec
from pydantic import Field

from polar.config import PermitConfig
from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.apptainer.command import StartScript, last_line, why_not
from polar.runtimes.apptainer.images import image_path
from polar.runtimes.apptainer.instance import (
    Init,
    Mount,
    containment_flags,
    end_instance,
    filter_flags,
    find_program,
    forbid_user_namespaces,
    hold,
    instance_name,
    is_watched,
    make_layer,
    sweep_instances,
    unprivileged,
)
from polar.runtimes.base import HOME, Command, Fetched, Finished, SessionFolders
from polar.runtimes.builtin import BuiltinRuntime, file_mode
from polar.runtimes.files.copies import copied_in, copied_out
from polar.runtimes.files.folders import inside
from polar.runtimes.files.safe_paths import held_inside, read_inside, write_inside
from polar.runtimes.host.cgroups import Cgroup, with_default_pids
from polar.runtimes.host.cgroups import sweep as sweep_cgroups
from polar.runtimes.host.netns_listener import open_listener
from polar.runtimes.host.spawn import Child, Job, complaint_of
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.runtimes.images.catalog import root_folder, unpacked_images
from polar.runtimes.interception import HTTPS_PORT
from polar.runtimes.mounts import node_folders
from polar.runtimes.options import Capabilities, RuntimeOptions

LOGGER = logging.getLogger("polar.runtimes")
FOLDERS = ("work", "home", "scratch", "layer", "state")
COPY = "/.polar"
"""Where the workspace is mounted while it is filled with the image's own."""
INSTALL = "`make apptainer` installs it"


class ApptainerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=("cpus", "memory_bytes", "pids"),
        contains=("files", "processes", "network"),
        own_root=True,
        reasons={"disk_bytes": "a session writes to folders of the node, which have no quota"},
        mounts=True,
        prepare_network=True,
        intercept=True,
    )

    image: str = "polar-base"
    """The path, with a slash in it, of an image file (SIF) or a root folder; the name of an image that `polar
    image build` made; or `docker://` and the name of an image in a registry, which is pulled once if the operator
    permits that."""
    workspace: str = Field(default="/work", pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$")
    """Its path inside. It starts with what the image has there, unless the task brings a workspace."""
    program: str | None = None
    """None: the one on PATH, or the one that `make apptainer` installs."""

    @property
    def needed_image(self) -> str:
        return "" if "/" in self.image else self.image


class ApptainerRuntime(BuiltinRuntime[ApptainerOptions]):
    Options: type[RuntimeOptions] = ApptainerOptions

    def __init__(self, options: ApptainerOptions) -> None:
        super().__init__(options)
        self._apptainer: tuple[str, ...] = ()
        self._image = Path()
        self._init: Init | None = None
        self._life = asyncio.Lock()
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
    async def images(cls, permits: PermitConfig) -> tuple[str, ...] | None:
        return await in_thread(unpacked_images)

    @classmethod
    async def sweep(cls) -> int:
        swept = await sweep_instances()
        await sweep_cgroups()
        return swept

    async def provide(self, permits: PermitConfig, tell: Callable[[str], None]) -> None:
        await super().provide(permits, tell)
        await image_path(self._options.image, self._program(), permits, tell)

    async def start(self, folders: SessionFolders) -> None:
        program = self._program()
        self._apptainer = (program, "--silent")
        if set(":,") & set(str(folders.root.absolute())):
            raise RuntimeFailure(f"apptainer cannot use {folders.root}: there is a ':' or ',' in its path")
        self._image = await image_path(self._options.image, program, folders.permits, LOGGER.info)
        folders = await self._take_folders(folders, FOLDERS)
        make_layer(folders.root / "layer")
        self._cgroup = Cgroup.create(_instance_id(folders), with_default_pids(self._options.limits))
        await self._fill_workspace(folders)
        await self._running()

    def _program(self) -> str:
        program = find_program(self._options.program)
        if program is None:
            raise RuntimeFailure(f"there is no program {self._options.program or 'apptainer'}: {INSTALL}")
        return program

    async def _end_leftovers(self, folders: SessionFolders) -> None:
        await end_instance(_instance_id(folders))

    async def listener(self) -> socket.socket | None:
        self._check_prepared()
        if self._options.network_mode != "gateway_only":
            return None
        return await open_listener((await self._running()).pid, user=True)

    async def _https_listener(self) -> socket.socket:
        return await open_listener((await self._running()).pid, user=True, port=HTTPS_PORT)

    async def exec(self, command: Command) -> Finished:
        folders = self._alive()
        if not inside(self._base(), command.cwd).is_dir():
            raise WorkspaceUnusable(f"the workspace has no folder {command.cwd!r}")
        kills, memory_kills = self._kills, self._cgroup.memory_kills()
        finished, has_started = await self._enter(folders, command)
        if not has_started and self._kills == kills and not await is_watched(_instance_id(folders)):
            await self._kill()  # the instance ended by itself just before the command entered it
            finished, has_started = await self._enter(folders, command)
        if not has_started:
            raise RuntimeFailure(why_not(command.argv[0], finished))
        return msgspec.structs.replace(finished, memory_kills=self._cgroup.memory_kills() - memory_kills)

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = file_mode(home=home, executable=executable)
        await in_thread(write_inside, self._base(home=home), path, content, mode)

    async def get(self, path: str) -> bytes:
        return await in_thread(read_inside, self._base(), path)

    async def put_folder(self, source: Path, path: str) -> None:
        """Ends what earlier commands left first: it could put a link to the node's files in the way."""
        base = self._base()
        if self._init is not None:
            await to_the_end(self._kill())
        await copied_in(source, inside(base, path))

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        with held_inside(self._base(home=home), path) as found:
            return await copied_out(found, target, cap_bytes)

    @property
    def workspace(self) -> str:
        return self._options.workspace

    def _base(self, *, home: bool = False) -> Path:
        return self._started().root / ("home" if home else "work")

    async def _fill_workspace(self, folders: SessionFolders) -> None:
        """With the base, or with what the image has there. It is copied, because an overlay cannot rename folders
        of its lower layer, which programs do not expect."""
        if folders.base is not None:
            await self.put_folder(folders.base, ".")
        elif self._image.is_dir():
            own = inside(self._image.resolve(), self.workspace.lstrip("/"))
            if own.is_dir():
                await self.put_folder(own, ".")
        else:
            work = Mount(folders.root / "work", COPY)
            copy = ("/bin/sh", "-c", f'[ ! -d "$0" ] || cp -a "$0/." {COPY}/', self.workspace)
            flags = containment_flags([work], network=False)
            argv = (*unprivileged(), *self._apptainer, "exec", *flags, str(self._image), *copy)
            finished = await self._run(argv, "apptainer", self._end)
            if finished.exit_code != 0:
                raise RuntimeFailure(f"cannot read {self.workspace} of the image: {last_line(finished)}")

    async def _running(self) -> Init:
        """The instance, started if it is not alive."""
        folders = self._alive()
        root = folders.root
        async with self._life:
            if self._init is not None and self._init.lives:
                return self._init
            await self._end()
            pid_file = root / "state" / "pid"
            pid_file.unlink(missing_ok=True)
            mounts = [
                Mount(root / "work", self.workspace),
                *(Mount(each.source, each.mount_point, read_only=True) for each in folders.programs),
                *(Mount(each.source, each.target, read_only=True) for each in node_folders(self._options.mounts)),
            ]
            if self._trust is not None and not self._is_preparing:
                mounts.append(Mount(self._trust.hosts, "/etc/hosts", read_only=True))
            flags = (
                *containment_flags(mounts, network=self._options.network_mode == "open" or self._is_preparing),
                *("--home", f"{root / 'home'}:{HOME}", "--workdir", str(root / "scratch")),
                *("--overlay", str(root / "layer"), "--pid-file", str(pid_file)),
            )
            names = (str(self._image), instance_name(_instance_id(folders)))
            argv = (*unprivileged(), *self._apptainer, "instance", "start", *flags, *names)
            finished = await self._run(argv, "apptainer", self._end)
            if finished.exit_code != 0:
                raise RuntimeFailure(f"apptainer cannot start {self._image}: {last_line(finished)}")
            self._init = hold(pid_file)
            await forbid_user_namespaces(self._init.pid)
            return self._init

    async def _enter(self, folders: SessionFolders, command: Command) -> tuple[Finished, bool]:
        """How the command ended, and whether it started; one that was killed while entering counts as started."""
        init = await self._running()
        own = {"LANG": "C.UTF-8", "HOME": HOME, "TMPDIR": "/tmp"}
        env = {**own, **command.env, "POLAR_SESSION": self._session_id}
        with StartScript(env) as script, init.entry() as entry:
            cwd = str(Path(self.workspace, command.cwd))
            flags = (*filter_flags(folders.root / "state"), "--cleanenv", "--no-privs", "--pwd", cwd)
            instance = f"instance://{instance_name(_instance_id(folders))}"
            argv = (*entry.argv, *self._apptainer, "exec", *flags, instance, *script.starting(command.argv))
            fds = (*entry.fds, *script.fds)
            finished = await self._run(argv, command.log_name, self._kill, fds, command.argv[0])
            return finished, finished.exit_code < 0 or script.has_started()

    async def _run(
        self,
        argv: tuple[str, ...],
        log_name: str,
        end: Callable[[], Awaitable[None]],
        pass_fds: tuple[int, ...] = (),
        program: str = "apptainer",
    ) -> Finished:
        """Runs Apptainer once, in the session's cgroup; calls `end` when cancelled."""
        state, pids = self._started().root / "state", set[int]()

        def began(pid: int) -> None:
            pids.add(pid)
            self._clients.add(pid)

        async def break_off(process: Child | None) -> None:
            await end()

        # Nothing that the program itself reads or writes belongs to the node's user.
        own_folders = ("HOME", "APPTAINER_CONFIGDIR", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR")
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        env = {"PATH": path, **dict.fromkeys(own_folders, str(state))}
        job = Job(self._cgroup.entering(argv), env, state, log_name, break_off, began, pass_fds, program)
        try:
            return await self._run_job(job)
        finally:
            self._clients -= pids

    async def _kill(self) -> None:
        """Ends it twice, because a start may be under way: the first ends the start, the second what it
        created."""
        self._kills += 1
        if self._init is not None:
            self._init.kill()
        await end_instance(_instance_id(self._started()), self._clients)
        async with self._life:
            await self._end()

    async def _end(self) -> None:
        """Kills init first: everything inside dies with it."""
        init, self._init = self._init, None
        if init is not None:
            init.kill()
            init.close()
        await end_instance(_instance_id(self._started()), self._clients)
        self._cgroup.kill()  # what Apptainer's own programs left, if one of them died early


def _instance_id(folders: SessionFolders) -> str:
    """Differs between two root folders of the same session."""
    return f"{folders.session_id}-{hashlib.sha256(os.fsencode(folders.root)).hexdigest()[:8]}"


async def _trial(program: str) -> str:
    """Runs `true` in the base image; without that image, in a user namespace, which Apptainer needs."""
    try:
        flags = containment_flags((), network=False)
        argv = (*unprivileged(), program, "--silent", "exec", *flags, str(root_folder("polar-base")), "true")
    except RuntimeFailure:
        argv = ("unshare", "--user", "true")
    complaint = await complaint_of(*argv)
    return f"apptainer does not work here: {complaint}" if complaint else ""
