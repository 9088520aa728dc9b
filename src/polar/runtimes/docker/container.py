"""One container and the files in it, by the Engine API.

The service follows links inside the container and nowhere else, running or not; here it is only seen to that a
path stays in the folder it belongs to.
"""

from __future__ import annotations

import asyncio
import base64
import io
import posixpath
import tarfile
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, Any, TypeVar

import aiohttp
import msgspec
import orjson

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runtimes.docker.api import DockerApi, DockerRefused
from polar.runtimes.docker.archive import StreamTooLong
from polar.runtimes.host.cgroups import MOUNT, Cgroup
from polar.runtimes.host.processes import PROC
from polar.runtimes.host.spawn import to_the_end
from polar.runtimes.host.threads import in_thread

FOLDER, LINK, OTHERS = 1 << 31, 1 << 27, 0x7280000
"""Bits of a mode as the Engine API tells it: pipes, sockets, devices and the like are the others."""
STAT = "X-Docker-Container-Path-Stat"
MAX_LINKS = 40
Result = TypeVar("Result")
Stream = Callable[[int | None], io.RawIOBase]


class Stat(msgspec.Struct, frozen=True):
    mode: int
    link_target: str = msgspec.field(default="", name="linkTarget")
    """Where a link leads in the end, from the container's root. Podman says it of everything."""

    @property
    def is_folder(self) -> bool:
        return bool(self.mode & FOLDER)

    @property
    def is_file(self) -> bool:
        return not self.mode & (FOLDER | LINK | OTHERS)


class ContainerPath(msgspec.Struct, frozen=True):
    """Where a path leads."""

    path: PurePosixPath
    """Links followed."""
    stat: Stat | None
    """None: nothing is there."""
    folder: PurePosixPath
    """The deepest folder on the way that is there, `path` itself left out."""

    @property
    def new(self) -> PurePosixPath:
        """From that folder on."""
        return self.path.relative_to(self.folder)


class Container:
    def __init__(self, api: DockerApi, container_id: str) -> None:
        self._api = api
        self.id = container_id
        self._path = f"/containers/{container_id}"

    async def start(self) -> None:
        await self._api.call("POST", f"{self._path}/start")

    async def inspect(self) -> dict[str, Any]:
        return await self._api.call("GET", f"{self._path}/json")

    async def memory_killed(self) -> bool:
        """Whether the memory limit has ended a process of it since it was started."""
        return bool((await self.inspect())["State"].get("OOMKilled"))

    async def control_group(self) -> Cgroup:
        """For what the kernel counts; an empty one where the node does not see the container's processes."""
        pid = int((await self.inspect())["State"]["Pid"])
        try:
            lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return Cgroup({})
        paths = {tree: path for _, tree, path in (line.split(":", 2) for line in lines) if self.id in path}
        tree = "memory" if "memory" in paths else ""
        return Cgroup({"memory": MOUNT / tree / paths[tree].lstrip("/")} if tree in paths else {})

    async def kill(self) -> None:
        """Returns when all its processes are dead: the kernel ends a pid namespace with its first process."""
        try:
            await self._api.call("POST", f"{self._path}/kill")
        except DockerRefused:
            if await self._runs():
                raise
            return
        await self._wait("not-running")

    async def remove(self) -> None:
        try:
            await self._api.call("DELETE", self._path, query={"force": "true", "v": "true"})
        except DockerRefused as error:
            if error.status == 409:  # somebody is removing it already
                await self._wait("removed")
            elif error.status != 404:
                raise

    async def ends(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._wait("not-running")
        except TimeoutError:  # one that is half way to its end takes no commands either
            return not await self._runs()
        return True

    async def _runs(self) -> bool:
        try:
            return bool((await self.inspect())["State"].get("Running"))
        except DockerRefused as error:
            if error.status != 404:
                raise
            return False

    async def _wait(self, condition: str) -> None:
        try:
            await self._api.call("POST", f"{self._path}/wait", query={"condition": condition})
        except DockerRefused as error:
            if error.status != 404:
                raise

    async def stat(self, path: PurePosixPath) -> Stat | None:
        try:
            async with self._api.request("HEAD", f"{self._path}/archive", query={"path": str(path)}) as response:
                told = response.headers.get(STAT, "")
        except DockerRefused as error:
            await self.inspect()  # a container that is gone is not a file that is missing
            if error.status != 404:
                raise WorkspaceUnusable(f"{path.name!r} cannot be followed") from error
            told = error.headers.get(STAT, "")  # of a link that leads to nothing, podman says both
            if not told:
                return None
        return msgspec.convert(orjson.loads(base64.b64decode(told)), Stat)

    async def find(self, base: PurePosixPath, path: str, links: int = 0) -> ContainerPath:
        """`path` under `base`, links followed; refused where it leads outside."""
        if "\0" in path or not path or path.startswith("/"):
            raise RuntimeFailure(f"{path!r} is not a relative path")
        names = PurePosixPath(posixpath.normpath(path)).parts
        if ".." in names:
            raise WorkspaceUnusable(f"{path!r} leads out of its folder")
        at, here = base, Stat(FOLDER)
        for count, name in enumerate(names, 1):
            at, rest = at / name, names[count:]
            there = await self.stat(at)
            if there is None:
                return ContainerPath(at.joinpath(*rest), None, at.parent)
            if there.link_target not in ("", str(at)):
                target = PurePosixPath(there.link_target)
                if not target.is_relative_to(base):
                    raise WorkspaceUnusable(f"{path!r} leads out of its folder")
                if links == MAX_LINKS:
                    raise WorkspaceUnusable(f"{path!r} cannot be followed: too many links")
                return await self.find(base, str(target.relative_to(base).joinpath(*rest)), links + 1)
            if rest and not there.is_folder:
                raise NotADirectoryError(f"{name!r} is not a folder")
            here = there
        return ContainerPath(at, here, at.parent if names else at)

    async def put(self, folder: PurePosixPath, tar: IO[bytes]) -> None:
        """Unpacks a tar in a folder; a folder is never replaced by a file, nor the other way round."""
        query = {"path": str(folder), "noOverwriteDirNonDir": "true"}
        await self._api.upload(f"{self._path}/archive", query, tar)

    async def read(self, path: PurePosixPath, reader: Callable[[Stream], Result]) -> Result:
        """What `reader` makes, in a thread, of a tar of what is at `path`."""
        async with self._api.request(
            "GET", f"{self._path}/archive", query={"path": str(path)}, limit_s=None
        ) as response:
            loop = asyncio.get_running_loop()

            def stream(limit_bytes: int | None) -> io.RawIOBase:
                return _Arriving(response.content, loop, limit_bytes)

            work = asyncio.ensure_future(in_thread(reader, stream))
            try:
                await asyncio.wait([work])
            finally:
                response.close()  # so that a thread that still reads comes to its end
                await to_the_end(_ended(work))
            try:
                return work.result()
            except tarfile.TarError as error:
                raise RuntimeFailure(f"what the engine sent is no whole tar: {error}") from error


async def labelled(api: DockerApi, wanted: dict[str, str]) -> list[tuple[Container, dict[str, str]]]:
    """Containers with these labels, also those that do not run, each with all its labels."""
    filters = orjson.dumps({"label": [f"{name}={value}" for name, value in wanted.items()]}).decode()
    found = await api.call("GET", "/containers/json", query={"all": "true", "filters": filters})
    return [(Container(api, row["Id"]), row["Labels"]) for row in found]


async def _ended(work: asyncio.Future[Any]) -> None:
    await asyncio.wait([work])


class _Arriving(io.RawIOBase):
    """A reply's content, read by a thread while the event loop receives it."""

    def __init__(
        self, content: aiohttp.StreamReader, loop: asyncio.AbstractEventLoop, limit_bytes: int | None
    ) -> None:
        self._content = content
        self._loop = loop
        self._room_bytes = limit_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = asyncio.run_coroutine_threadsafe(self._content.read(len(buffer)), self._loop).result()
        if self._room_bytes is not None:
            self._room_bytes -= len(piece)
            if self._room_bytes < 0:
                raise StreamTooLong
        buffer[: len(piece)] = piece
        return len(piece)
