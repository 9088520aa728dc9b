"""The node's side of supervised commands: one launcher process per node forks one supervisor per command.

The kernel keeps a command's process tree below its supervisor (`supervisor_main.py`), so the node need not search
for its processes. All waiting is on sockets of the event loop: no threads, and no cost that grows with the
machine.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.host import supervisor_main
from polar.runtimes.host.descriptors import closing_fd, memory_file, start_child_program
from polar.runtimes.host.processes import OWNER, owner
from polar.runtimes.host.supervisor_main import MAX_MESSAGE_BYTES

BUSY = (errno.EAGAIN, errno.ETOOMANYREFS)
"""The launcher has not yet received what was sent before."""
BUSY_S = 0.002


class SupervisorLost(RuntimeFailure):
    """A supervisor was killed: the rest of its process tree has to be searched for."""


class View(msgspec.Struct, frozen=True):
    """A folder that a command sees at another path."""

    source: Path
    target: str


class SupervisedProgram(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment."""
    cwd: str
    """Its path in the command's view."""
    view: View | None = None

    def encoded(self) -> bytes:
        view = (str(self.view.source), self.view.target) if self.view is not None else None
        return json.dumps({"argv": self.argv, "env": self.env, "cwd": self.cwd, "view": view}).encode()


class SupervisedCommand:
    """A command and all processes that it starts."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = self._loop.create_future()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._stuck: asyncio.Future[list[int]] = self._loop.create_future()
        self.empty: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing of the tree is alive; fails with SupervisorLost if that is unknown."""
        channel.setblocking(False)
        self._loop.add_reader(channel, self._receive)

    @property
    def pid(self) -> int:
        return self._started.result()

    async def started(self) -> None:
        """Raises OSError if the program cannot be executed."""
        await asyncio.shield(self._started)

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        return await asyncio.shield(self._exited)

    async def end(self, grace_s: float) -> None:
        """Returns when nothing of the tree is alive: sends SIGTERM, and SIGKILL after `grace_s`."""
        if not self.empty.done():
            self._request({"grace_s": grace_s})
            await asyncio.wait([self.empty, self._stuck], return_when=asyncio.FIRST_COMPLETED)
        if not self.empty.done():
            stuck, self._stuck = self._stuck.result(), self._loop.create_future()
            raise RuntimeFailure(f"cannot kill processes {', '.join(map(str, stuck))}")
        self.empty.result()

    def _request(self, request: dict[str, Any]) -> None:
        """Sending fails if the channel is full or the supervisor has ended. Its last messages may still be in the
        channel then, so only `_receive` closes it."""
        with suppress(OSError):
            self._channel.send(json.dumps(request).encode())

    def _receive(self) -> None:
        """Reads all messages: uvloop does not call again after an error of the channel."""
        while (message := self._next_message()) is not None:
            if not message:
                return self._close()
            self._take(json.loads(message))

    def _next_message(self) -> bytes | None:
        """Empty: the supervisor has ended. None: there is no message now."""
        try:
            return self._channel.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended before it read our request; its earlier messages come next
            return self._next_message()
        except OSError:
            return b""

    def _take(self, message: dict[str, Any]) -> None:
        if "started" in message:
            _settle(self._started, message["started"])
        if "refused" in message:
            _settle(self._started, OSError(message["errno"], message["refused"]))
        if "exited" in message:
            _settle(self._exited, message["exited"])
        if "stuck" in message:
            _settle(self._stuck, message["stuck"])
        if "empty" in message or "refused" in message:
            _settle(self.empty, None)

    def _close(self) -> None:
        """The supervisor has ended: either its tree is empty, or it was killed."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._channel.close()
        lost = SupervisorLost("the command's supervisor was killed")
        for future in (self._started, self._exited, self.empty):
            _settle(future, lost)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():
        return
    if isinstance(value, BaseException):
        future.set_exception(value)
        future.exception()  # marks it as retrieved, so that asyncio logs no warning
    else:
        future.set_result(value)


class Launcher:
    """Starts commands below supervisors. The first command starts the launcher's process."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._refused_views: dict[str, str] = {}

    @staticmethod
    def is_possible() -> bool:
        return sys.platform == "linux"

    async def start(self, program: SupervisedProgram, out: int, err: int) -> SupervisedCommand:
        """Sends the request; `started` waits for its outcome."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, closing_fd(memory_file(program.encoded())) as request:
            try:
                await self._send((theirs.fileno(), request, out, err))
            except BaseException:
                ours.close()
                raise
        return SupervisedCommand(ours)

    async def why_no_view(self, target: str) -> str:
        """Why no folder can be mounted at `target` in a command's view; empty: it can. Tried once."""
        if target not in self._refused_views:
            program = SupervisedProgram((), {}, "/", View(Path(target), target))
            with closing_fd(os.open(os.devnull, os.O_WRONLY)) as devnull:
                trial = await self.start(program, devnull, devnull)
            try:
                await trial.started()
                self._refused_views[target] = ""
            except OSError as error:
                self._refused_views[target] = str(error.strerror)
        return self._refused_views[target]

    async def close(self) -> None:
        """Also ends what is left of the commands."""
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is not None:
            await process.wait()

    async def _send(self, descriptors: tuple[int, ...]) -> None:
        async with self._turn:
            for is_last in (False, True):
                control = self._control or await self._launch()
                try:
                    return await _send(control, descriptors)
                except OSError as error:  # the launcher was killed
                    if is_last:
                        raise RuntimeFailure(f"the launcher of commands has ended: {error.strerror}") from error
                    await self.close()

    async def _launch(self) -> socket.socket:
        self._process, self._control = await start_child_program(supervisor_main.__file__, {OWNER: owner()})
        self._control.setblocking(False)
        return self._control


async def _send(control: socket.socket, descriptors: tuple[int, ...]) -> None:
    while True:
        try:
            socket.send_fds(control, [b"+"], list(descriptors))
            return
        except OSError as error:
            if error.errno not in BUSY:
                raise
        await asyncio.sleep(BUSY_S)
