"""The `bubblewrap` runtime: files, processes and a network of the session's own, without root or a daemon.

A keeper holds the session's namespaces and files; each command runs in a cage of its own. So what a command
leaves in the background dies with it: a step cannot start a server for the next one. Files stay until `stop`.
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

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import HOME, Command, Fetched, Finished, Program, SessionFolders, program_path
from polar.runtimes.bubblewrap.bwrap_command import (
    BwrapCommand,
    closed_to_others,
    left_behind,
    mark,
    options,
    refuse_nul,
)
from polar.runtimes.bubblewrap.namespace_holder import NamespaceHolder, Plan
from polar.runtimes.files.copies import copied_out
from polar.runtimes.files.folders import cannot, read_opened, remove_tree, take_root
from polar.runtimes.host import cgroups
from polar.runtimes.host.cgroups import Cgroup, Hierarchy
from polar.runtimes.host.processes import Family, end
from polar.runtimes.host.spawn import Job, Spawner, to_the_end
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.catalog import root_folder
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, RuntimeOptions

FOLDERS = ("disk", "image", "lower", "root")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BubblewrapOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=("cpus", "memory_bytes", "pids", "disk_bytes"),
        contains=("files", "processes", "network"),
    )

    image: str | None = None
    """A root folder, or the name of an image that `polar image build` made; the session may write anywhere in its
    view of it. None: the node's own programs, read-only."""
    workspace: str = Field(default="/work")
    """Where the workspace is inside. Where the task brings none and the image has a folder there, that folder is
    it."""

    @field_validator("workspace")
    @classmethod
    def _is_a_place(cls, path: str) -> str:
        parts = PurePosixPath(path).parts[1:]
        if not path.startswith("/") or "\0" in path or ".." in parts or not parts:
            raise ValueError(f"{path!r} cannot be the workspace: an absolute path is, and not the root itself")
        return "/" + "/".join(parts)


class BubblewrapRuntime:
    Options: type[RuntimeOptions] = BubblewrapOptions
    notes: tuple[str, ...] = ()

    def __init__(self, options: BubblewrapOptions) -> None:
        self._options = options
        self._folders: SessionFolders | None = None
        self._holder: NamespaceHolder | None = None
        self._spawner: Spawner | None = None
        self._cgroup: Cgroup | None = None
        self._stopped = False
        self._stopping = asyncio.Lock()
        self._running: dict[BwrapCommand, asyncio.Future[Finished]] = {}
        self._closed: list[str] = []

    @classmethod
    async def lacking(cls) -> str:
        for program in ("bwrap", "nsenter"):
            if shutil.which(program) is None:
                return f"there is no {program}; `make bubblewrap` installs it"
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
    async def sweep(cls) -> int:
        return await _end_all(await in_thread(left_behind)) + await cgroups.sweep()

    async def start(self, folders: SessionFolders) -> None:
        """Begins afresh: what a node that died has left of this place is ended and removed first."""
        if reason := Hierarchy().lacking(self._options.limits):
            raise RuntimeFailure(reason)
        root, has_leftovers = take_root(folders.root, FOLDERS)
        self._folders = msgspec.structs.replace(folders, root=root)
        plan = self._plan(root, folders)
        self._closed = await in_thread(closed_to_others)
        if has_leftovers:
            await _end_all(await in_thread(left_behind, self._folders.root))
        for name in FOLDERS:
            await in_thread(remove_tree, root / name)
            (root / name).mkdir(mode=0o700)
        folders.logs.mkdir(parents=True, exist_ok=True)
        self._holder = await NamespaceHolder.start(plan, mark(self._folders.root))
        self._cgroup = self._limited(f"{folders.session_id}.{self._holder.pid}")
        self._spawner = Spawner(folders.logs, self._options)
        if folders.base is not None and plan.base is None:
            await self.put_folder(folders.base, ".")

    def _plan(self, root: Path, folders: SessionFolders) -> Plan:
        image = root_folder(self._options.image) if self._options.image is not None else None
        if image is not None and not _is_ours(image):
            raise RuntimeFailure(f"{image} belongs to another user: an image is built by the user of the node")
        for program in folders.programs:
            if "/" in program.name or program.name in ("", ".", ".."):
                raise RuntimeFailure(f"{program.name!r} cannot be the name of a tool")
        return Plan(
            root=str(root),
            workspace=self._options.workspace,
            home=HOME,
            own_network=self._options.network_mode != "open",
            image=str(image.resolve()) if image is not None else None,
            # What belongs to others could not be changed in the workspace either: a copy can.
            base=str(folders.base.resolve()) if folders.base is not None and _is_ours(folders.base) else None,
            disk_bytes=int(self._options.limits.disk_bytes or 0),
            programs=tuple((str(program.source.resolve()), self.program(program)) for program in folders.programs),
        )

    def _limited(self, name: str) -> Cgroup | None:
        limits, hierarchy = self._options.limits, Hierarchy()
        wanted = limits if limits.pids is not None else limits.model_copy(update={"pids": DEFAULT_PIDS})
        if hierarchy.lacking(wanted) and not hierarchy.lacking(limits):
            wanted = limits
        return Cgroup.create(name, wanted, hierarchy) if set(wanted.asked) - {"disk_bytes"} else None

    async def listener(self) -> socket.socket | None:
        self._alive()
        return await self._live_holder().listen() if self._options.network_mode == "gateway_only" else None

    async def exec(self, command: Command) -> Finished:
        folders, holder = self._alive(), self._live_holder()
        assert self._spawner is not None
        cwd = await holder.folder(self.workspace, command.cwd)
        env = self._environment(folders, command)
        refuse_nul((*env, *env.values(), *command.argv), command.argv[0])
        bwrap = BwrapCommand(options(folders.root, env, cwd, self._closed))
        job = Job(
            argv=self._client(holder, bwrap, command.argv),
            env=mark(folders.root),
            cwd=folders.root,
            log_name=command.log_name,
            break_off=bwrap.break_off,
            began=bwrap.began,
            pass_fds=bwrap.pass_fds,
            program=command.argv[0],
        )
        return await self._run(bwrap, job)

    async def _run(self, bwrap: BwrapCommand, job: Job) -> Finished:
        """The start is never cancelled: that kills bubblewrap just when it leaves a tree alive."""
        assert self._spawner is not None
        kills = self._memory_kills()
        running = self._running[bwrap] = asyncio.ensure_future(self._spawner.run(job))
        try:
            finished = await asyncio.shield(running)
        finally:
            await to_the_end(self._leave(bwrap))
        if not bwrap.was_entered and finished.exit_code == 1:
            raise RuntimeFailure(_why_not(job.program, finished.stderr_tail))
        if kills := self._memory_kills() - kills:
            said = f"{finished.stderr_tail}\n[polar: killed at the limit of memory]"
            return msgspec.structs.replace(finished, stderr_tail=said, memory_kills=kills)
        return finished

    def _client(self, holder: NamespaceHolder, bwrap: BwrapCommand, argv: tuple[str, ...]) -> tuple[str, ...]:
        joined = ("--user", "--preserve-credentials", "--mount", "--net")
        client = (
            *self._counted(),
            *(_program("nsenter"), "--target", str(holder.pid), *joined),
            *(_program("bwrap"), *bwrap.arguments, "--", *argv),
        )
        return self._cgroup.entering(client) if self._cgroup is not None else client

    def _counted(self) -> tuple[str, ...]:
        """The kernel counts processes by user namespace too, so that a fork bomb ends without a control group. It
        does not count root's."""
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        wanted = max(DEFAULT_PIDS, self._options.limits.pids or 0)
        is_counted = os.geteuid() != 0 and (most == resource.RLIM_INFINITY or most > wanted)
        return (_program("prlimit"), f"--nproc={wanted}:{wanted}") if is_counted else ()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)
        file = await self._live_holder().open_to_write(self.home if home else self.workspace, path, mode)
        try:
            await in_thread(_write, file, content)
        except OSError as error:
            raise self._cannot_write(path, error) from error

    def _cannot_write(self, path: str, error: OSError) -> RuntimeFailure:
        """A full disk is the session's own where it has one."""
        if error.errno == errno.ENOSPC and self._options.limits.disk_bytes is not None:
            return WorkspaceUnusable(f"cannot write {path!r}: the session has filled its disk")
        return cannot("write", path, error)

    async def get(self, path: str) -> bytes:
        return await in_thread(read_opened, await self._live_holder().open_to_read(self.workspace, path), path)

    async def put_folder(self, source: Path, path: str) -> None:
        await self._live_holder().copy_in(source, self.workspace, path)

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        found = await self._live_holder().find(self.home if home else self.workspace, path)
        try:
            source = Path(f"/proc/self/fd/{found.descriptor}", found.value)
            return await copied_out(source, target, cap_bytes)
        finally:
            os.close(found.descriptor)

    async def kill(self) -> None:
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

    def _alive(self) -> SessionFolders:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        if self._folders is None:
            raise RuntimeFailure("the runtime is not started")
        return self._folders

    def _live_holder(self) -> NamespaceHolder:
        if self._holder is None:
            raise RuntimeFailure("the runtime is not started")
        return self._holder

    def _environment(self, folders: SessionFolders, command: Command) -> dict[str, str]:
        own = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": HOME, "TMPDIR": "/tmp"}
        return {**own, **command.env, "POLAR_SESSION": folders.session_id}

    def _memory_kills(self) -> int:
        return self._cgroup.memory_kills() if self._cgroup is not None else 0

    async def _leave(self, bwrap: BwrapCommand) -> None:
        await _ended(bwrap, self._running[bwrap])
        bwrap.close()
        del self._running[bwrap]

    async def _kill(self) -> None:
        await asyncio.gather(*(_ended(bwrap, running) for bwrap, running in self._running.items()))

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._stopping:
            await self._kill()
            if self._spawner is not None:
                await self._spawner.close()
            if self._holder is not None:
                await self._holder.end()
            await in_thread(remove_tree, folders.root)
            if self._cgroup is not None:
                await self._cgroup.remove()


async def _ended(bwrap: BwrapCommand, running: asyncio.Future[Finished]) -> None:
    await bwrap.end()
    await asyncio.wait([running])


async def _end_all(marks: set[bytes]) -> int:
    for seen in marks:
        await end(Family(seen, leaders=frozenset()), grace_s=0)
    return len(marks)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeFailure(f"there is no {name}; `make bubblewrap` installs it")
    return found


def _is_ours(folder: Path) -> bool:
    return folder.stat().st_uid == os.geteuid()


def _why_not(program: str, said: str) -> str:
    last = said.strip().rpartition("\n")[2]
    if last.endswith(f"execvp {program}: No such file or directory"):
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {last}"


def _write(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)
