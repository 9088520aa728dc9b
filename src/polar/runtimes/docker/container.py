"""One container and its files, through the Docker Engine API.

The Docker Engine resolves links only inside the container, running or not; this module also checks that a path
stays in its folder.
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
from polar.runtimes.host.threads import in_thread, to_the_end

FOLDER, LINK, OTHERS = 1 << 31, 1 << 27, 0x7280000
"""Mode bits in the Docker Engine API; OTHERS are pipes, sockets, devices and the like."""
STAT = "X-Docker-Container-Path-Stat"
MAX_LINKS = 40
Result = TypeVar("Result")
Stream = Callable[[int | None], io.RawIOBase]


class Stat(msgspec.Struct, frozen=True):
    mode: int
    link_target: str = msgspec.field(default="", name="linkTarget")
    """Where a link finally leads, from the container's root. Podman sets it for every path."""

    @property
    def is_folder(self) -> bool:
        return bool(self.mode & FOLDER)

    @property
    def is_file(self) -> bool:
        return not self.mode & (FOLDER | LINK | OTHERS)


class ContainerPath(msgspec.Struct, frozen=True):
    """A resolved path."""

    path: PurePosixPath
    stat: Stat | None
    """None: nothing is there."""
    folder: PurePosixPath
    """The deepest existing folder above `path`."""

    @property
    def new(self) -> PurePosixPath:
        """The path relative to `folder`."""
        return self.path.relative_to(self.folder)


class Container:
    def __init__(self, api: DockerApi, container_id: str) -> None:
        self._api = api
        self.id = container_id
        self._path = f"/containers/{container_id}"

    async def start(self) -> None:
        await self._api.call("POST", f"{self._path}/start")

    async def switch_network(self, before: str, after: str) -> None:
        """Call it while no process of the container runs."""
        body = {"Container": self.id, "Force": True}
        await self._api.call("POST", f"/networks/{before}/disconnect", body=body)
        await self._api.call("POST", f"/networks/{after}/connect", body={"Container": self.id})

    async def networks(self) -> set[str]:
        return set((await self.inspect())["NetworkSettings"]["Networks"])

    async def inspect(self) -> dict[str, Any]:
        return await self._api.call("GET", f"{self._path}/json")

    async def memory_killed(self) -> bool:
        """Whether the memory limit has ended one of its processes since it was started."""
        return bool((await self.inspect())["State"].get("OOMKilled"))

    async def control_group(self) -> Cgroup:
        """The container's cgroup, for its counters; empty if the node does not see the container's processes."""
        pid = int((await self.inspect())["State"]["Pid"])
        try:
            lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return Cgroup({})
        paths = {tree: path for _, tree, path in (line.split(":", 2) for line in lines) if self.id in path}
        tree = "memory" if "memory" in paths else ""
        return Cgroup({"memory": MOUNT / tree / paths[tree].lstrip("/")} if tree in paths else {})

    async def kill(self) -> None:
        """Returns when all its processes are dead: the kernel kills them with the first process."""
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
            if error.status == 409:  # it is being removed already
                await self._wait("removed")
            elif error.status != 404:
                raise

    async def ends(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._wait("not-running")
        except TimeoutError:  # a container that is stopping takes no commands either
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
                encoded = response.headers.get(STAT, "")
        except DockerRefused as error:
            await self.inspect()  # raises if the container itself is gone
            if error.status != 404:
                raise WorkspaceUnusable(f"cannot resolve {path.name!r}") from error
            encoded = error.headers.get(STAT, "")  # Podman sends both for a broken link
            if not encoded:
                return None
        return msgspec.convert(orjson.loads(base64.b64decode(encoded)), Stat)

    async def find(self, base: PurePosixPath, path: str, links: int = 0) -> ContainerPath:
        """Resolves `path` under `base`; refuses one that leads outside."""
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
                    raise WorkspaceUnusable(f"cannot resolve {path!r}: too many links")
                return await self.find(base, str(target.relative_to(base).joinpath(*rest)), links + 1)
            if rest and not there.is_folder:
                raise NotADirectoryError(f"{name!r} is not a folder")
            here = there
        return ContainerPath(at, here, at.parent if names else at)

    async def put(self, folder: PurePosixPath, tar: IO[bytes]) -> None:
        """Unpacks a tar in a folder; never replaces a folder by a file, or a file by a folder."""
        query = {"path": str(folder), "noOverwriteDirNonDir": "true"}
        await self._api.upload(f"{self._path}/archive", query, tar)

    async def read(self, path: PurePosixPath, reader: Callable[[Stream], Result]) -> Result:
        """Passes a tar of what is at `path` to `reader`, in a thread, and returns its result."""
        async with self._api.request(
            "GET", f"{self._path}/archive", query={"path": str(path)}, limit_s=None
        ) as response:
            loop = asyncio.get_running_loop()

            def stream(limit_bytes: int | None) -> io.RawIOBase:
                return _ResponseStream(response.content, loop, limit_bytes)

            work = asyncio.ensure_future(in_thread(reader, stream))
            try:
                await asyncio.wait([work])
            finally:
                response.close()  # ends a thread that still reads
                await to_the_end(asyncio.wait([work]))
            try:
                return work.result()
            except tarfile.TarError as error:
                raise RuntimeFailure(f"the Docker Engine sent an incomplete tar: {error}") from error


async def labelled(api: DockerApi, wanted: dict[str, str]) -> list[tuple[Container, dict[str, str]]]:
    """Containers with these labels, running or not, each with all its labels."""
    filters = orjson.dumps({"label": [f"{name}={value}" for name, value in wanted.items()]}).decode()
    found = await api.call("GET", "/containers/json", query={"all": "true", "filters": filters})
    return [(Container(api, row["Id"]), row["Labels"]) for row in found]


class _ResponseStream(io.RawIOBase):
    """A response body that a thread reads while the event loop receives it."""

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
