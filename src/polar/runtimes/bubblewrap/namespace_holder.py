"""The node's side of a session's namespace holder: a process that holds its namespaces and opens its files.

The merged view of a workspace that is mounted over a shared folder exists only in the holder's mount namespace. So
the holder opens files and passes their descriptors; the node reads and writes through those, and never resolves a
path of the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.bubblewrap import namespace_holder_main
from polar.runtimes.bubblewrap.namespace_holder_main import MAX_MESSAGE_BYTES
from polar.runtimes.host.descriptors import closing_fd, receive, start_child_program
from polar.runtimes.host.threads import in_thread, to_the_end


class SessionPlan(msgspec.Struct, frozen=True):
    """What the holder assembles."""

    root: str
    """The session's root folder on the node."""
    workspace: str
    """The path inside; likewise `home`."""
    home: str
    own_network: bool
    image: str | None = None
    """A root folder under the session's overlay. None: the node's own system, read-only."""
    base: str | None = None
    """A folder under the workspace's overlay."""
    disk_bytes: int = 0
    """0: unlimited."""
    programs: tuple[tuple[str, str], ...] = ()
    """Folders of the node, and their paths inside."""


class HolderReply(msgspec.Struct, frozen=True):
    value: str
    descriptor: int
    """-1: none. The caller closes it."""


class NamespaceHolder:
    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, plan: SessionPlan, env: dict[str, str]) -> NamespaceHolder:
        process, channel = await start_child_program(namespace_holder_main.__file__, env)
        holder = cls(process, channel)
        try:
            await holder._exchange(msgspec.json.encode(plan))
            _map_ids(process.pid)
            await holder._exchange(b"{}")
        except BaseException:
            await to_the_end(holder.end())
            raise
        return holder

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listen(self, port: int = 0) -> socket.socket:
        """A socket on the loopback of the session's network; port 0: any free one."""
        listener = socket.socket(fileno=(await self._ask("listen", port=port)).descriptor)
        listener.setblocking(False)
        return listener

    async def folder(self, base: str, path: str) -> str:
        """The path inside of a folder under `base`; refused if it does not exist."""
        return (await self._ask("find_folder", base=base, path=path)).value

    async def find(self, base: str, path: str) -> HolderReply:
        """The descriptor of the folder that holds a file or folder, and its name there."""
        return await self._ask("find", base=base, path=path)

    async def open_to_read(self, base: str, path: str) -> int:
        return (await self._ask("open_to_read", base=base, path=path)).descriptor

    async def open_to_write(self, base: str, path: str, mode: int) -> int:
        return (await self._ask("open_to_write", base=base, path=path, mode=mode)).descriptor

    async def copy_in(self, source: Path, base: str, path: str) -> None:
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RuntimeFailure(f"{source} is not a folder: {error.strerror}") from error
        with closing_fd(descriptor):
            await self._ask("copy_in", give=(descriptor,), base=base, path=path)

    async def end(self) -> None:
        """The namespaces end with the last process in them."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        async with self._turn:
            self._channel.close()

    async def _ask(self, act: str, *, give: tuple[int, ...] = (), **request: str | int) -> HolderReply:
        return await self._exchange(json.dumps({"act": act, **request}).encode(), give)

    async def _exchange(self, message: bytes, give: tuple[int, ...] = ()) -> HolderReply:
        """A cancelled request still waits for its reply, which would otherwise be taken for the next one's."""
        async with self._turn:
            if self._channel.fileno() < 0:
                raise RuntimeFailure("the runtime is stopped")
            under_way = asyncio.ensure_future(in_thread(_exchange, self._channel, message, give))
            try:
                return await asyncio.shield(under_way)
            except asyncio.CancelledError:
                await to_the_end(_drop(under_way))
                raise


def _exchange(channel: socket.socket, message: bytes, give: tuple[int, ...]) -> HolderReply:
    try:
        socket.send_fds(channel, [message], list(give))
        received, descriptors = receive(channel, MAX_MESSAGE_BYTES)
    except OSError as error:
        raise RuntimeFailure(f"the session's namespace holder has ended: {error.strerror}") from error
    if not received:
        raise RuntimeFailure("the session's namespace holder has ended")
    reply: dict[str, Any] = json.loads(received)
    if "missing" in reply:
        raise NoSuchFile(reply["missing"])
    if "unusable" in reply:
        raise WorkspaceUnusable(reply["unusable"])
    if "refused" in reply:
        raise RuntimeFailure(reply["refused"])
    return HolderReply(reply.get("value", ""), descriptors[0] if descriptors else -1)


async def _drop(under_way: asyncio.Future[HolderReply]) -> None:
    await asyncio.wait([under_way])
    if under_way.exception() is None and under_way.result().descriptor >= 0:
        os.close(under_way.result().descriptor)


def _map_ids(pid: int) -> None:
    """The node's user is root inside. If the node is root itself, every other id keeps its number, so that the
    session can write to an image's files of other groups."""
    process = Path("/proc") / str(pid)
    try:
        if os.geteuid() == 0:
            for ids in ("uid_map", "gid_map"):
                (process / ids).write_text(_same_ids(ids))
            return
        (process / "setgroups").write_text("deny")
        (process / "uid_map").write_text(f"0 {os.geteuid()} 1")
        (process / "gid_map").write_text(f"0 {os.getegid()} 1")
    except OSError as error:
        raise RuntimeFailure(f"cannot map ids into a user namespace: {error.strerror}") from error


def _same_ids(ids: str) -> str:
    ranges = [line.split() for line in Path(f"/proc/self/{ids}").read_text().splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in ranges)
