"""The `bubblewrap` runtime: the session has its own files, processes and network, without root or a daemon.

A namespace holder holds the session's namespaces and files; each command runs in a bubblewrap process of its own.
So what a command leaves in the background dies with it: a step cannot start a server for the next one. Files stay
until `stop`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path, PurePosixPath
from typing import ClassVar

import msgspec
from pydantic import Field, field_validator

from polar.config import PermitConfig
from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import HOME, Command, Fetched, Finished, SessionFolders
from polar.runtimes.bubblewrap.bwrap_command import (
    BwrapCommand,
    hidden_files,
    left_behind,
    marker,
    options,
    refuse_nul,
)
from polar.runtimes.bubblewrap.namespace_holder import NamespaceHolder, SessionPlan
from polar.runtimes.builtin import BuiltinRuntime, file_mode
from polar.runtimes.files.copies import copied_out
from polar.runtimes.files.folders import cannot, read_opened
from polar.runtimes.host import cgroups
from polar.runtimes.host.cgroups import Cgroup, Hierarchy, with_default_pids
from polar.runtimes.host.descriptors import closing_fd
from polar.runtimes.host.processes import Family, end
from polar.runtimes.host.spawn import Job
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.runtimes.images.catalog import root_folder, unpacked_images
from polar.runtimes.interception import HTTPS_PORT, TrustFolder, node_bundles
from polar.runtimes.mounts import node_folders
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, RuntimeOptions

FOLDERS = ("disk", "image", "lower", "root")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BubblewrapOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=("cpus", "memory_bytes", "pids", "disk_bytes"),
        contains=("files", "processes", "network"),
        mounts=True,
        prepare_network=True,
        intercept=True,
    )

    image: str | None = None
    """A root folder, or the name of an image that `polar image build` made; the session may write anywhere in its
    view of it. None: the node's own programs, read-only."""
    workspace: str = Field(default="/work")
    """The workspace's path inside. If the image has a folder there and the task brings no workspace, that folder
    is the workspace."""

    @property
    def offered(self) -> Capabilities:
        return msgspec.structs.replace(self.capabilities, own_root=self.image is not None)

    @property
    def needed_image(self) -> str:
        return "" if self.image is None or "/" in self.image else self.image

    @field_validator("workspace")
    @classmethod
    def _is_a_folder(cls, path: str) -> str:
        parts = PurePosixPath(path).parts[1:]
        if not path.startswith("/") or "\0" in path or ".." in parts or not parts:
            raise ValueError(f"{path!r} cannot be the workspace: give an absolute path other than the root")
        return "/" + "/".join(parts)


class BubblewrapRuntime(BuiltinRuntime[BubblewrapOptions]):
    Options: type[RuntimeOptions] = BubblewrapOptions

    def __init__(self, options: BubblewrapOptions) -> None:
        super().__init__(options)
        self._started_holder: NamespaceHolder | None = None
        self._running: dict[BwrapCommand, asyncio.Future[Finished]] = {}
        self._hidden: list[str] = []

    @classmethod
    async def lacking(cls) -> str:
        for program in ("bwrap", "nsenter"):
            if shutil.which(program) is None:
                return f"{program} is not installed; `make bubblewrap` installs it"
        with tempfile.TemporaryDirectory(prefix="polar-") as folder:
            runtime = cls(BubblewrapOptions())
            try:
                await runtime.start(SessionFolders("probe", Path(folder, "root"), Path(folder, "logs")))
                finished = await runtime.exec(Command(argv=("true",)))
                return finished.stderr_tail if finished.exit_code else ""
            except RuntimeFailure as error:
                return f"{error}; it needs user namespaces for ordinary users and Linux 5.12"
            finally:
                await runtime.stop()

    @classmethod
    async def images(cls, permits: PermitConfig) -> tuple[str, ...] | None:
        return await in_thread(unpacked_images)

    @classmethod
    async def sweep(cls) -> int:
        return await _end_all(await in_thread(left_behind)) + await cgroups.sweep()

    async def start(self, folders: SessionFolders) -> None:
        if reason := Hierarchy().lacking(self._options.limits):
            raise RuntimeFailure(reason)
        folders = await self._take_folders(folders, FOLDERS)
        plan = self._plan(folders)
        self._hidden = await in_thread(hidden_files)
        holder = self._started_holder = await NamespaceHolder.start(plan, marker(folders.root))
        limits = with_default_pids(self._options.limits)
        self._cgroup = Cgroup.create(f"{folders.session_id}.{holder.pid}", limits)
        if folders.base is not None and plan.base is None:
            await self.put_folder(folders.base, ".")

    async def _end_leftovers(self, folders: SessionFolders) -> None:
        await _end_all(await in_thread(left_behind, folders.root))

    def _plan(self, folders: SessionFolders) -> SessionPlan:
        image = root_folder(self._options.image) if self._options.image is not None else None
        if image is not None and not _is_ours(image):
            raise RuntimeFailure(f"{image} belongs to another user: build the image as the node's user")
        for program in folders.programs:
            if "/" in program.name or program.name in ("", ".", ".."):
                raise RuntimeFailure(f"{program.name!r} is not a valid program name")
        return SessionPlan(
            root=str(folders.root),
            workspace=self._options.workspace,
            home=HOME,
            own_network=self._options.network_mode != "open",
            image=str(image.resolve()) if image is not None else None,
            # An overlay could not change files of another user; a copy can.
            base=str(folders.base.resolve()) if folders.base is not None and _is_ours(folders.base) else None,
            disk_bytes=int(self._options.limits.disk_bytes or 0),
            programs=(
                *((str(each.source.resolve()), each.mount_point) for each in folders.programs),
                *((str(each.source), each.target) for each in node_folders(self._options.mounts)),
            ),
        )

    async def listener(self) -> socket.socket | None:
        self._alive()
        self._check_prepared()
        return await self._holder.listen() if self._options.network_mode == "gateway_only" else None

    async def _https_listener(self) -> socket.socket:
        return await self._holder.listen(HTTPS_PORT)

    async def _extend_bundles(self, trust: TrustFolder) -> None:
        """Without an image the node's own bundles are read-only, and covered in each command."""
        if self._options.image is not None:
            await super()._extend_bundles(trust)

    async def exec(self, command: Command) -> Finished:
        folders = self._alive()
        cwd = await self._holder.folder(self.workspace, command.cwd)
        env = self._environment(folders, command)
        refuse_nul((*env, *env.values(), *command.argv), command.argv[0])
        covers = {path: "/dev/null" for path in self._hidden} | self._intercepting()
        chosen = options(folders.root, env, cwd, covers, name_servers=self._shows_name_servers())
        bwrap = BwrapCommand(chosen)
        job = Job(
            argv=self._argv(bwrap, command.argv),
            env=marker(folders.root),
            cwd=folders.root,
            log_name=command.log_name,
            break_off=bwrap.break_off,
            began=bwrap.began,
            pass_fds=bwrap.pass_fds,
            program=command.argv[0],
        )
        return await self._run(bwrap, job)

    async def _run(self, bwrap: BwrapCommand, job: Job) -> Finished:
        """Never cancels a start: that would kill bubblewrap at the moment when it leaves a tree alive."""
        kills = self._cgroup.memory_kills()
        running = self._running[bwrap] = asyncio.ensure_future(self._run_job(job))
        try:
            finished = await asyncio.shield(running)
        finally:
            await to_the_end(self._leave(bwrap))
        if not bwrap.was_entered and finished.exit_code == 1:
            raise RuntimeFailure(_why_not(job.program, finished.stderr_tail))
        if kills := self._cgroup.memory_kills() - kills:
            tail = f"{finished.stderr_tail}\n[polar: killed at the memory limit]"
            return msgspec.structs.replace(finished, stderr_tail=tail, memory_kills=kills)
        return finished

    def _argv(self, bwrap: BwrapCommand, argv: tuple[str, ...]) -> tuple[str, ...]:
        network = () if self._is_preparing else ("--net",)  # without it, the command stays in the node's network
        joined = ("--user", "--preserve-credentials", "--mount", *network)
        return self._cgroup.entering(
            (
                *self._process_limit(),
                *(_program("nsenter"), "--target", str(self._holder.pid), *joined),
                *(_program("bwrap"), *bwrap.arguments, "--", *argv),
            )
        )

    def _shows_name_servers(self) -> bool:
        """To prepare steps, unless the image has a link there, over which bubblewrap cannot mount."""
        if not self._is_preparing or self._options.image is None:
            return self._is_preparing
        return not (root_folder(self._options.image) / "etc/resolv.conf").is_symlink()

    def _intercepting(self) -> dict[str, str]:
        """Files of the root to cover, and what covers them. Prepare steps find the names where they are."""
        if self._trust is None or self._is_preparing:
            return {}
        bundles = node_bundles() if self._options.image is None else ()
        return {"/etc/hosts": str(self._trust.hosts), **dict.fromkeys(bundles, str(self._trust.bundle))}

    def _process_limit(self) -> tuple[str, ...]:
        """The kernel also counts processes per user namespace, which stops a fork bomb without a control group. It
        does not count root's."""
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        wanted = max(DEFAULT_PIDS, self._options.limits.pids or 0)
        is_counted = os.geteuid() != 0 and (most == resource.RLIM_INFINITY or most > wanted)
        return (_program("prlimit"), f"--nproc={wanted}:{wanted}") if is_counted else ()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = file_mode(home=home, executable=executable)
        file = await self._holder.open_to_write(self.home if home else self.workspace, path, mode)
        try:
            await in_thread(_write, file, content)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._options.limits.disk_bytes is not None:
                raise WorkspaceUnusable(f"cannot write {path!r}: the session has filled its disk") from error
            raise cannot("write", path, error) from error

    async def get(self, path: str) -> bytes:
        return await in_thread(read_opened, await self._holder.open_to_read(self.workspace, path), path)

    async def put_folder(self, source: Path, path: str) -> None:
        await self._holder.copy_in(source, self.workspace, path)

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        found = await self._holder.find(self.home if home else self.workspace, path)
        with closing_fd(found.descriptor) as folder:
            return await copied_out(Path(f"/proc/self/fd/{folder}", found.value), target, cap_bytes)

    @property
    def workspace(self) -> str:
        return self._options.workspace

    @property
    def _holder(self) -> NamespaceHolder:
        if self._started_holder is None:
            raise RuntimeFailure("the runtime is not started")
        return self._started_holder

    def _environment(self, folders: SessionFolders, command: Command) -> dict[str, str]:
        own = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": HOME, "TMPDIR": "/tmp"}
        return {**own, **command.env, "POLAR_SESSION": self._session_id}

    async def _leave(self, bwrap: BwrapCommand) -> None:
        await _ended(bwrap, self._running[bwrap])
        bwrap.close()
        del self._running[bwrap]

    async def _kill(self) -> None:
        await asyncio.gather(*(_ended(bwrap, running) for bwrap, running in self._running.items()))

    async def _release(self, folders: SessionFolders) -> None:
        if self._started_holder is not None:
            await self._started_holder.end()


async def _ended(bwrap: BwrapCommand, running: asyncio.Future[Finished]) -> None:
    await bwrap.end()
    await asyncio.wait([running])


async def _end_all(markers: set[bytes]) -> int:
    for found in markers:
        await end(Family(found), grace_s=0)
    return len(markers)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeFailure(f"{name} is not installed; `make bubblewrap` installs it")
    return found


def _is_ours(folder: Path) -> bool:
    return folder.stat().st_uid == os.geteuid()


def _why_not(program: str, output: str) -> str:
    last = output.strip().rpartition("\n")[2]
    if last.endswith(f"execvp {program}: No such file or directory"):
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {last}"


def _write(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)
