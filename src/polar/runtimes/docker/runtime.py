"""The `docker` runtime: a container of a Docker Engine on the node's machine, or of podman by the same API.

Workspace and home are in the container's own layer, so an image's folders are copied when they are written to and
not before. When a command is cancelled the whole container is killed, because that is what surely ends all it
started; the next command starts the container again, and the files are as they were. Its network is a new one
then: a door that was open stays behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import HOME, Command, Fetched, Finished, Program, SessionFolders, program_path
from polar.runtimes.docker.api import DockerApi, DockerRefused, connected
from polar.runtimes.docker.archive import NewFile, Owner, pack_file, pack_folder, pack_tree, read_file, unpack
from polar.runtimes.docker.container import Container, ContainerPath, labelled
from polar.runtimes.docker.exec import KILLED, Exec, Logs, NotStarted, check_words
from polar.runtimes.docker.options import DockerOptions, container_config, not_held
from polar.runtimes.files.folders import remove_tree, take_root
from polar.runtimes.host.cgroups import Cgroup
from polar.runtimes.host.netns_listener import open_listener
from polar.runtimes.host.output import CappedLog
from polar.runtimes.host.processes import PROC, home, owner_lives
from polar.runtimes.host.spawn import to_the_end
from polar.runtimes.host.threads import in_thread
from polar.runtimes.options import RuntimeOptions
from polar.types import is_id

SCRATCH = "scratch"
SETTLE_S = 1.0
"""An engine learns a little later than others that a container has ended."""
NO_ENGINE = "`make docker` installs and starts one, and DOCKER_HOST names another"


class DockerRuntime:
    Options: type[RuntimeOptions] = DockerOptions
    notes: tuple[str, ...] = ()

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._folders: SessionFolders | None = None
        self._api: DockerApi | None = None
        self._container: Container | None = None
        self._group = Cgroup({})
        self._runs = False
        self._stopped = False
        self._turn = asyncio.Lock()
        self._owner = Owner(0, 0)
        self._language: dict[str, str] = {}
        self._bases = {False: PurePosixPath(options.workspace), True: PurePosixPath(HOME)}

    @classmethod
    async def lacking(cls) -> str:
        try:
            async with connected():
                return ""
        except RuntimeFailure as error:
            return f"{error}; {NO_ENGINE}"

    @classmethod
    async def sweep(cls) -> int:
        """On the engine that DOCKER_HOST names, or the usual one; where none answers there is nothing to sweep."""
        if not home() or await cls.lacking():
            return 0
        async with connected() as api:
            found = await labelled(api, {"polar.home": home()})
            dead = [container for container, labels in found if _is_dead(labels.get("polar.owner", ""))]
            for container in dead:
                await container.remove()
        return len(dead)

    async def start(self, folders: SessionFolders) -> None:
        """Begins afresh: what a node that died has left of this place is removed first."""
        root, _ = take_root(folders.root, (SCRATCH,))
        self._folders = msgspec.structs.replace(folders, root=root)
        try:
            await in_thread(remove_tree, self._scratch)
            self._scratch.mkdir(mode=0o700)
            folders.logs.mkdir(parents=True, exist_ok=True)
            self._api = DockerApi(self._options.engine)
            await self._api.open()
            await self._make(self._api, self._folders)
        except BaseException:
            await self.stop()
            raise

    async def listener(self) -> socket.socket | None:
        if self._options.network_mode == "none":
            return None
        await self._run_container()
        pid = int((await self._alive().inspect())["State"]["Pid"])
        try:
            environment = await in_thread((PROC / str(pid) / "environ").read_bytes)
            if f"POLAR_SESSION={self._started().session_id}\0".encode() not in environment:
                raise RuntimeFailure("the engine's containers are not among the processes that the node sees")
            return await open_listener(pid, user=os.geteuid() != 0)
        except (OSError, RuntimeFailure) as error:
            advice = "" if os.geteuid() == 0 else "; run the node as root, or choose another runtime"
            raise RuntimeFailure(f"no door into the container's network: {error}{advice}") from error

    async def exec(self, command: Command) -> Finished:
        self._alive()
        check_words(command.argv, command.env)
        cwd = self._options.workspace if command.cwd == "." else await self._folder(command.cwd)
        logs = self._logs(self._started().logs, command.log_name)
        try:
            return await self._run(command.argv, self._environment(command), cwd, logs)
        except NotStarted as error:
            found = await self._alive().stat(self._bases[False])
            if found is None or not found.is_folder:
                raise WorkspaceUnusable("the workspace is no folder any more") from error
            raise
        finally:
            logs.close()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        mode = (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)
        found = await self._find_target(path, home=home)
        if found.stat is not None and not found.stat.is_file:
            raise WorkspaceUnusable(f"cannot write {path!r}: what is there is not a file")
        packed = pack_file(NewFile(found.new, content, mode), self._owner)
        await self._alive().put(found.folder, packed)

    async def get(self, path: str) -> bytes:
        found = await self._find_content(path, home=False)
        if not found.stat or not found.stat.is_file:
            raise NoSuchFile(f"{path!r} is not a file")
        return await self._alive().read(found.path, read_file)

    async def put_folder(self, source: Path, path: str) -> None:
        found = await self._find_target(path, home=False)
        if found.stat is not None and not found.stat.is_folder:
            raise WorkspaceUnusable(f"cannot write {path!r}: what is there is not a folder")
        to, below = (found.folder, found.new) if found.stat is None else (found.path, PurePosixPath("."))
        with tempfile.TemporaryFile(dir=self._scratch) as packed:
            await in_thread(pack_tree, source, below, self._owner, packed)
            await self._alive().put(to, packed)

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        found = await self._find_content(path, home=home)
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            return await self._alive().read(found.path, lambda stream: unpack(stream, scratch, target, cap_bytes))
        finally:
            await to_the_end(in_thread(remove_tree, scratch))

    async def kill(self) -> None:
        if self._container is not None:
            await to_the_end(self._kill())

    async def stop(self) -> None:
        self._stopped = True
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

    def _alive(self) -> Container:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        if self._container is None:
            raise RuntimeFailure("the runtime is not started")
        return self._container

    @property
    def _scratch(self) -> Path:
        return self._started().root / SCRATCH

    async def _make(self, api: DockerApi, folders: SessionFolders) -> None:
        image = await self._image(api)
        await self._check_limits(api)
        for container, _ in await labelled(api, {"polar.home": home(), "polar.place": str(folders.root)}):
            await container.remove()
        await to_the_end(self._create(api, container_config(self._options, folders, image)))
        await self._run_container()
        self._owner = await self._ask_owner(self._options.user or image.get("User", ""))
        environment = dict(word.partition("=")[::2] for word in image.get("Env") or ())
        self._language = {} if environment.keys() & {"LANG", "LC_ALL"} else {"LANG": "C.UTF-8"}
        self._bases = {
            False: await self._make_folder(self._options.workspace, 0o755),
            True: await self._make_folder(HOME, 0o700),
        }
        if folders.base is not None:
            await self.put_folder(folders.base, ".")

    async def _image(self, api: DockerApi) -> dict[str, Any]:
        name = self._options.image
        try:
            return (await api.call("GET", f"/images/{name}/json"))["Config"] or {}
        except DockerRefused as error:
            if error.status != 404:
                raise
            raise RuntimeFailure(
                f"the engine has no image {name!r}: `polar image build` makes one, `docker pull` fetches one"
            ) from error

    async def _check_limits(self, api: DockerApi) -> None:
        """An engine that cannot hold a limit goes on without it and says so in a log of its own."""
        limits = self._options.limits
        if limits.asked and (reason := not_held(limits, await api.call("GET", "/info"))):
            raise RuntimeFailure(reason)

    async def _create(self, api: DockerApi, config: dict[str, Any]) -> None:
        """A call that is broken off may still make a container, of which nobody would know."""
        async with self._turn:
            if self._stopped:
                raise RuntimeFailure("the runtime is stopped")
            made = await api.call("POST", "/containers/create", body=config)
            self._container = Container(api, made["Id"])

    async def _ask_owner(self, user: str) -> Owner:
        if not user:
            return Owner(0, 0)
        logs = self._logs(self._scratch, "id")
        try:
            told = await self._run(("sh", "-c", "id -u; id -g"), {}, "/", logs)
        finally:
            logs.close()
        ids = told.stdout_tail.split()
        if told.exit_code != 0 or len(ids) != 2:
            raise RuntimeFailure(f"the image cannot say who its user is: {told.stderr_tail.strip()}")
        return Owner(int(ids[0]), int(ids[1]))

    async def _make_folder(self, path: str, mode: int) -> PurePosixPath:
        """Where it really is: an image may have a link there."""
        found = await self._alive().find(PurePosixPath("/"), path.lstrip("/"))
        if found.stat is None:
            await self._alive().put(found.folder, pack_folder(found.new, self._owner, mode))
        elif not found.stat.is_folder:
            raise RuntimeFailure(f"the image has something else than a folder at {path}")
        return found.path

    async def _run(self, argv: tuple[str, ...], env: dict[str, str], cwd: str, logs: Logs) -> Finished:
        try:
            return await self._try(argv, env, cwd, logs)
        except NotStarted:  # what keeps the container alive can be killed from inside
            if not await self._alive().ends(SETTLE_S):
                raise
            self._runs = False
            return await self._try(argv, env, cwd, logs)

    async def _try(self, argv: tuple[str, ...], env: dict[str, str], cwd: str, logs: Logs) -> Finished:
        await self._run_container()
        assert self._api is not None
        prepared = await Exec.create(self._api, self._alive().id, argv, env, cwd)
        try:
            finished = await prepared.run(logs, self._group)
            return await self._with_memory_kills(finished)
        except NotStarted:
            raise
        except BaseException:
            await to_the_end(self._kill())
            raise

    async def _with_memory_kills(self, finished: Finished) -> Finished:
        """Asks the engine where the node cannot read the container's control group."""
        has_limit = self._options.limits.memory_bytes is not None
        if self._group.is_seen or not has_limit or finished.exit_code != KILLED:
            return finished
        return msgspec.structs.replace(finished, memory_kills=int(await self._alive().memory_killed()))

    async def _run_container(self) -> None:
        async with self._turn:
            container = self._alive()
            if not self._runs:
                await container.start()
                if self._options.limits.memory_bytes is not None:
                    self._group = await container.control_group()
                self._runs = True

    def _environment(self, command: Command) -> dict[str, str]:
        return {
            **self._language,
            "HOME": HOME,
            **command.env,
            "POLAR_SESSION": self._started().session_id,
        }

    def _logs(self, folder: Path, name: str) -> Logs:
        if not is_id(name):
            raise RuntimeFailure(f"{name!r} cannot be the name of a log")
        cap_bytes, tail_bytes = self._options.output_cap_bytes, self._options.tail_bytes
        out, err = (
            CappedLog(folder / f"{name}.{stream}", cap_bytes=cap_bytes, tail_bytes=tail_bytes)
            for stream in ("stdout", "stderr")
        )
        return Logs(out, err)

    async def _folder(self, path: str) -> str:
        try:
            found = await self._find_content(path, home=False)
        except FileNotFoundError as error:
            raise WorkspaceUnusable(f"the workspace has no folder {path!r}") from error
        if not found.stat or not found.stat.is_folder:
            raise WorkspaceUnusable(f"the workspace has no folder {path!r}: a file is there")
        return str(found.path)

    async def _find_target(self, path: str, *, home: bool) -> ContainerPath:
        try:
            return await self._alive().find(self._bases[home], path)
        except NotADirectoryError as error:
            raise WorkspaceUnusable(f"cannot write {path!r}: {error}") from error

    async def _find_content(self, path: str, *, home: bool) -> ContainerPath:
        try:
            found = await self._alive().find(self._bases[home], path)
        except NotADirectoryError as error:
            raise NoSuchFile(f"there is no {path!r}: {error}") from error
        if found.stat is None:
            raise NoSuchFile(f"there is no {path!r}")
        return found

    async def _kill(self) -> None:
        async with self._turn:
            await self._alive().kill()
            self._runs = False

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._turn:
            if self._api is not None:
                await self._api.close()
            try:
                if self._container is not None:
                    async with connected(self._options.engine) as api:
                        await Container(api, self._container.id).remove()
                    self._container = None
            finally:
                await in_thread(remove_tree, folders.root)


def _is_dead(owner: str) -> bool:
    return re.fullmatch(r"\d+\.\d+", owner) is not None and not owner_lives(owner)
