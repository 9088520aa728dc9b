"""The keeper of a session, seen from the node: a process that holds its namespaces and reaches its files.

The merged view of a workspace laid over a shared folder exists in the keeper's mount namespace only. So the
keeper opens files and hands their descriptors over; the node reads and writes through those, with no path of the
session's that could lead it astray.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from polar.errors import NoSuchFile, RuntimeFailure, WorkspaceUnusable
from polar.runtimes.bubblewrap import namespace_holder_main
from polar.runtimes.bubblewrap.namespace_holder_main import MAX_MESSAGE_BYTES
from polar.runtimes.host.spawn import to_the_end
from polar.runtimes.host.threads import in_thread


class Plan(msgspec.Struct, frozen=True):
    """What the keeper assembles."""

    root: str
    """The place's folder on the node."""
    workspace: str
    """Where it is inside; likewise `home`."""
    home: str
    own_network: bool
    image: str | None = None
    """A root folder the session's root is laid over. None: the node's own system is shown, read-only."""
    base: str | None = None
    """A folder the workspace is laid over."""
    disk_bytes: int = 0
    """0: as much as there is."""
    programs: tuple[tuple[str, str], ...] = ()
    """Folders of the node, and where they are inside."""


class HolderReply(msgspec.Struct, frozen=True):
    value: str
    descriptor: int
    """-1: none came. Whoever asked closes it."""


class NamespaceHolder:
    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, plan: Plan, mark: dict[str, str]) -> NamespaceHolder:
        """`mark` stands in its environment."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", namespace_holder_main.__file__, str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env=mark,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        holder = cls(process, ours)
        try:
            await holder._exchange(msgspec.json.encode(plan))
            _say_who_is_who(process.pid)
            await holder._exchange(b"{}")
        except BaseException:
            await to_the_end(holder.end())
            raise
        return holder

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listen(self) -> socket.socket:
        """A socket on the loopback of the session's network."""
        listener = socket.socket(fileno=(await self._ask("listen")).descriptor)
        listener.setblocking(False)
        return listener

    async def folder(self, base: str, path: str) -> str:
        """The path inside of a folder under `base`; refused where there is none."""
        return (await self._ask("find_folder", base=base, path=path)).value

    async def find(self, base: str, path: str) -> HolderReply:
        """The folder that holds a file or folder, as a descriptor, and its name there."""
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
        try:
            await self._ask("copy_in", give=(descriptor,), base=base, path=path)
        finally:
            os.close(descriptor)

    async def end(self) -> None:
        """With it go the namespaces, when the last process in them is dead."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        async with self._turn:
            self._channel.close()

    async def _ask(self, act: str, *, give: tuple[int, ...] = (), **request: str | int) -> HolderReply:
        return await self._exchange(json.dumps({"act": act, **request}).encode(), give)

    async def _exchange(self, message: bytes, give: tuple[int, ...] = ()) -> HolderReply:
        """A request that is cancelled is answered nevertheless, lest its answer be taken for the next one's."""
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
        received, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 1)
    except OSError as error:
        raise RuntimeFailure(f"the runtime's keeper is gone: {error.strerror}") from error
    if not received:
        raise RuntimeFailure("the runtime's keeper is gone")
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


def _say_who_is_who(pid: int) -> None:
    """Who we are is root inside. Where the node is root itself every other id keeps its number too, so that an
    image's files of other groups can be written to."""
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
        raise RuntimeFailure(f"no ids can be given to a user namespace: {error.strerror}") from error


def _same_ids(ids: str) -> str:
    ranges = [line.split() for line in Path(f"/proc/self/{ids}").read_text().splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in ranges)
