"""The `docker` runtime: a container of a Docker Engine on the node's machine, or of Podman through the same API.

Workspace and home are in the container's own layer, so an image's files are copied only when they are written to.
Cancelling a command kills the whole container, because that surely ends all it started; the next command starts
the container again with the same files. It has a new network then, and a listener opened before is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import orjson

from polar.config import PermitConfig
from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.base import HOME, Command, Fetched, Finished, SessionFolders
from polar.runtimes.builtin import BuiltinRuntime, file_mode
from polar.runtimes.docker.api import DockerApi, DockerRefused, connected
from polar.runtimes.docker.archive import Owner, pack, pack_tree, read_file, unpack
from polar.runtimes.docker.container import Container, ContainerPath, labelled
from polar.runtimes.docker.exec import KILLED, Exec, Logs, NotStarted, check_words
from polar.runtimes.docker.images import SessionImages
from polar.runtimes.docker.options import DockerOptions, container_config, short_name, why_no_limits
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.netns_listener import open_listener
from polar.runtimes.host.processes import PROC, is_dead_owner, owner_scope
from polar.runtimes.host.seccomp_profile import session_profile
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.runtimes.interception import HTTPS_PORT
from polar.runtimes.options import RuntimeOptions

LOGGER = logging.getLogger("polar.runtimes")
SCRATCH = "scratch"
BRIDGE, NONE = "bridge", "none"
"""Names of the Docker Engine's own networks."""
SETTLE_S = 1.0
"""How long the Docker Engine may take to notice that a container has ended."""
NO_ENGINE = "`make docker` installs and starts one; DOCKER_HOST names another"


class DockerRuntime(BuiltinRuntime[DockerOptions]):
    Options: type[RuntimeOptions] = DockerOptions

    def __init__(self, options: DockerOptions) -> None:
        super().__init__(options)
        self._api: DockerApi | None = None
        self._created: Container | None = None
        self._is_running = False
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
    async def images(cls, permits: PermitConfig) -> tuple[str, ...] | None:
        if permits.pull != "never":
            return None
        async with connected() as api:
            found = await api.call("GET", "/images/json")
        return tuple(sorted({short_name(tag) for image in found for tag in image.get("RepoTags") or ()}))

    @classmethod
    async def sweep(cls) -> int:
        """On the Docker Engine of DOCKER_HOST, or the usual one, if it answers."""
        if not owner_scope() or await cls.lacking():
            return 0
        async with connected() as api:
            found = await labelled(api, {"polar.home": owner_scope()})
            dead = [container for container, labels in found if is_dead_owner(labels.get("polar.owner", ""))]
            for container in dead:
                await container.remove()
        return len(dead)

    async def provide(self, permits: PermitConfig, tell: Callable[[str], None]) -> None:
        await super().provide(permits, tell)
        async with connected(self._options.engine) as api:
            await SessionImages(api, permits, tell).image_for(self._options)

    async def start(self, folders: SessionFolders) -> None:
        """If a node died here, removes the container that it left of this session first."""
        try:
            folders = await self._take_folders(folders, (SCRATCH,))
            self._api = DockerApi(self._options.engine)
            await self._api.open()
            await self._make(self._api, folders)
        except BaseException:
            await self.stop()
            raise

    async def listener(self) -> socket.socket | None:
        self._check_prepared()
        return await self._listener() if self._options.network_mode != "none" else None

    async def _https_listener(self) -> socket.socket:
        return await self._listener(HTTPS_PORT)

    async def _listener(self, port: int = 0) -> socket.socket:
        await self._run_container()
        pid = int((await self._container.inspect())["State"]["Pid"])
        try:
            environment = await in_thread((PROC / str(pid) / "environ").read_bytes)
            if f"POLAR_SESSION={self._started().session_id}\0".encode() not in environment:
                raise RuntimeFailure("the node does not see the processes of the Docker Engine's containers")
            return await open_listener(pid, user=os.geteuid() != 0, port=port)
        except (OSError, RuntimeFailure) as error:
            advice = "" if os.geteuid() == 0 else "; run the node as root, or choose another runtime"
            raise RuntimeFailure(f"cannot listen in the container's network: {error}{advice}") from error

    async def exec(self, command: Command) -> Finished:
        folders = self._alive()
        check_words(command.argv, command.env)
        cwd = self._options.workspace if command.cwd == "." else await self._folder(command.cwd)
        env = {**self._language, "HOME": HOME, **command.env, "POLAR_SESSION": self._session_id}
        logs = Logs(folders.logs, command.log_name, self._options)
        try:
            return await self._run(command.argv, env, cwd, logs)
        except NotStarted as error:
            found = await self._container.stat(self._bases[False])
            if found is None or not found.is_folder:
                raise WorkspaceUnusable("the workspace is no longer a folder") from error
            raise
        finally:
            logs.close()

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        found = await self._find_target(path, home=home)
        if found.stat is not None and not found.stat.is_file:
            raise WorkspaceUnusable(f"cannot write {path!r}: it exists and is not a file")
        packed = pack(found.new, file_mode(home=home, executable=executable), self._owner, content)
        await self._container.put(found.folder, packed)

    async def get(self, path: str) -> bytes:
        found = await self._find_content(path, home=False)
        if not found.stat or not found.stat.is_file:
            raise NoSuchFile(f"{path!r} is not a file")
        return await self._container.read(found.path, read_file)

    async def put_folder(self, source: Path, path: str) -> None:
        found = await self._find_target(path, home=False)
        if found.stat is not None and not found.stat.is_folder:
            raise WorkspaceUnusable(f"cannot write {path!r}: it exists and is not a folder")
        to, below = (found.folder, found.new) if found.stat is None else (found.path, PurePosixPath("."))
        with tempfile.TemporaryFile(dir=self._scratch) as packed:
            await in_thread(pack_tree, source, below, self._owner, packed)
            await self._container.put(to, packed)

    async def fetch(self, path: str, target: Path, *, cap_bytes: int, home: bool = False) -> Fetched:
        found = await self._find_content(path, home=home)
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            return await self._container.read(
                found.path, lambda stream: unpack(stream, scratch, target, cap_bytes)
            )
        finally:
            await to_the_end(in_thread(remove_tree, scratch))

    @property
    def workspace(self) -> str:
        return self._options.workspace

    @property
    def _container(self) -> Container:
        self._alive()
        if self._created is None:
            raise RuntimeFailure("the runtime is not started")
        return self._created

    @property
    def _scratch(self) -> Path:
        return self._started().root / SCRATCH

    async def _make(self, api: DockerApi, folders: SessionFolders) -> None:
        image = await SessionImages(api, folders.permits, LOGGER.info).image_for(self._options)
        await self._check_limits(api)
        for container, _ in await labelled(api, {"polar.home": owner_scope(), "polar.place": str(folders.root)}):
            await container.remove()
        profile = self._seccomp_profile(api)
        await to_the_end(self._create(api, container_config(self._options, folders, image, profile)))
        if self._is_preparing:
            await self._switch_network(NONE, BRIDGE)
        await self._run_container()
        self._owner = await self._ask_owner(self._options.user or image.config.get("User", ""))
        environment = dict(word.partition("=")[::2] for word in image.config.get("Env") or ())
        self._language = {} if environment.keys() & {"LANG", "LC_ALL"} else {"LANG": "C.UTF-8"}
        self._bases = {
            False: await self._make_folder(self._options.workspace, 0o755),
            True: await self._make_folder(HOME, 0o700),
        }
        if folders.base is not None:
            await self.put_folder(folders.base, ".")

    async def _switch_network(self, before: str, after: str) -> None:
        try:
            await self._container.switch_network(before, after)
        except DockerRefused as error:
            raise RuntimeFailure(f"this Docker Engine cannot open a network for prepare only: {error}") from error

    async def _close_network(self) -> None:
        """The container was created without network, so it also gets none when it is started again."""
        await self._kill()
        await self._switch_network(BRIDGE, NONE)
        self._is_preparing = False
        await self._run_container()
        if found := await self._container.networks() - {NONE}:
            await self._kill()
            raise RuntimeFailure(f"the Docker Engine did not close the network {found.pop()} after prepare")

    def _seccomp_profile(self, api: DockerApi) -> str:
        profile = orjson.dumps(session_profile())
        if not api.is_podman:
            return profile.decode()
        path = self._scratch / "system-calls.json"
        path.write_bytes(profile)
        return str(path)

    async def _check_limits(self, api: DockerApi) -> None:
        """A Docker Engine that cannot enforce a limit only logs that and goes on without it."""
        limits = self._options.limits
        if limits.asked and (reason := why_no_limits(limits, await api.call("GET", "/info"))):
            raise RuntimeFailure(reason)

    async def _create(self, api: DockerApi, config: dict[str, Any]) -> None:
        """Must not be cancelled: the call could still create a container that the runtime does not know."""
        async with self._turn:
            if self._stopped:
                raise RuntimeFailure("the runtime is stopped")
            made = await api.call("POST", "/containers/create", body=config)
            self._created = Container(api, made["Id"])

    async def _ask_owner(self, user: str) -> Owner:
        if not user:
            return Owner(0, 0)
        logs = Logs(self._scratch, "id", self._options)
        try:
            finished = await self._run(("sh", "-c", "id -u; id -g"), {}, "/", logs)
        finally:
            logs.close()
        ids = finished.stdout_tail.split()
        if finished.exit_code != 0 or len(ids) != 2:
            raise RuntimeFailure(f"cannot find the ids of the image's user: {finished.stderr_tail.strip()}")
        return Owner(int(ids[0]), int(ids[1]))

    async def _make_folder(self, path: str, mode: int) -> PurePosixPath:
        """Returns its resolved path: an image may have a link there."""
        found = await self._container.find(PurePosixPath("/"), path.lstrip("/"))
        if found.stat is None:
            await self._container.put(found.folder, pack(found.new, mode, self._owner))
        elif not found.stat.is_folder:
            raise RuntimeFailure(f"{path} of the image is not a folder")
        return found.path

    async def _run(self, argv: tuple[str, ...], env: dict[str, str], cwd: str, logs: Logs) -> Finished:
        try:
            return await self._try(argv, env, cwd, logs)
        except NotStarted:  # a process inside can kill the one that keeps the container alive
            if not await self._container.ends(SETTLE_S):
                raise
            self._is_running = False
            return await self._try(argv, env, cwd, logs)

    async def _try(self, argv: tuple[str, ...], env: dict[str, str], cwd: str, logs: Logs) -> Finished:
        await self._run_container()
        assert self._api is not None
        prepared = await Exec.create(self._api, self._container.id, argv, env, cwd)
        try:
            finished = await prepared.run(logs, self._cgroup)
            return await self._with_memory_kills(finished)
        except NotStarted:
            raise
        except BaseException:
            await to_the_end(self._kill())
            raise

    async def _with_memory_kills(self, finished: Finished) -> Finished:
        """Asks the Docker Engine if the node cannot read the container's control group."""
        has_limit = self._options.limits.memory_bytes is not None
        if self._cgroup.is_readable or not has_limit or finished.exit_code != KILLED:
            return finished
        return msgspec.structs.replace(finished, memory_kills=int(await self._container.memory_killed()))

    async def _run_container(self) -> None:
        async with self._turn:
            container = self._container
            if not self._is_running:
                await container.start()
                if self._options.limits.memory_bytes is not None:
                    self._cgroup = await container.control_group()
                self._is_running = True

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
            return await self._container.find(self._bases[home], path)
        except NotADirectoryError as error:
            raise WorkspaceUnusable(f"cannot write {path!r}: {error}") from error

    async def _find_content(self, path: str, *, home: bool) -> ContainerPath:
        try:
            found = await self._container.find(self._bases[home], path)
        except NotADirectoryError as error:
            raise NoSuchFile(f"there is no {path!r}: {error}") from error
        if found.stat is None or (path == "." and await self._container.stat(found.path) is None):
            raise NoSuchFile(f"there is no {path!r}")
        return found

    async def _kill(self) -> None:
        async with self._turn:
            if self._created is not None:
                await self._created.kill()
                self._is_running = False

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._turn:
            if self._api is not None:
                await self._api.close()
            try:
                if self._created is not None:
                    async with connected(self._options.engine) as api:
                        await Container(api, self._created.id).remove()
                    self._created = None
            finally:
                await in_thread(remove_tree, folders.root)
