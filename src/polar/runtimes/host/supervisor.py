"""Commands below supervisors, seen from the node: one launcher process per node forks one supervisor per command.

The kernel keeps a command's tree together below its supervisor (`supervisor_main.py`), so nobody has to look for
its processes. All waiting is on sockets of the event loop: no thread, and nothing that grows with the machine.
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
from polar.runtimes.host.memory_file import memory_file
from polar.runtimes.host.processes import OWNER, owner
from polar.runtimes.host.supervisor_main import MAX_MESSAGE_BYTES

BUSY = (errno.EAGAIN, errno.ETOOMANYREFS)
"""The launcher has not yet taken what was sent before."""
BUSY_S = 0.002


class SupervisorLost(RuntimeFailure):
    """A supervisor was killed: what is left of its tree has to be looked for."""


class View(msgspec.Struct, frozen=True):
    """A folder that a command sees at another path."""

    source: Path
    target: str


class SupervisedProgram(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    """All of it."""
    cwd: str
    """As the command sees it."""
    view: View | None = None

    def encoded(self) -> bytes:
        view = (str(self.view.source), self.view.target) if self.view is not None else None
        return json.dumps({"argv": self.argv, "env": self.env, "cwd": self.cwd, "view": view}).encode()


class SupervisedCommand:
    """One command and all that it starts."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = self._loop.create_future()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._stuck: asyncio.Future[list[int]] = self._loop.create_future()
        self.empty: asyncio.Future[None] = self._loop.create_future()
        """Nothing of the tree is alive; SupervisorLost where nobody knows."""
        channel.setblocking(False)
        self._loop.add_reader(channel, self._hear)

    @property
    def pid(self) -> int:
        return self._started.result()

    async def started(self) -> None:
        """OSError: the program cannot be executed."""
        await asyncio.shield(self._started)

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        return await asyncio.shield(self._exited)

    async def end(self, grace_s: float) -> None:
        """Returns when nothing of the tree is alive: asked first, killed after `grace_s`."""
        if not self.empty.done():
            self._ask({"grace_s": grace_s})
            await asyncio.wait([self.empty, self._stuck], return_when=asyncio.FIRST_COMPLETED)
        if not self.empty.done():
            stuck, self._stuck = self._stuck.result(), self._loop.create_future()
            raise RuntimeFailure(f"processes that cannot be killed: {', '.join(map(str, stuck))}")
        self.empty.result()

    def _ask(self, request: dict[str, Any]) -> None:
        """Fails where the supervisor was asked many times already, or has ended. Then its last words may still be
        in the channel, so only `_hear` closes that."""
        with suppress(OSError):
            self._channel.send(json.dumps(request).encode())

    def _hear(self) -> None:
        """All that is there: uvloop does not call again after an error of the channel."""
        while (message := self._received()) is not None:
            if not message:
                return self._close()
            self._take(json.loads(message))

    def _received(self) -> bytes | None:
        """Empty: the supervisor has ended. None: it has nothing to say now."""
        try:
            return self._channel.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended before it read what we asked; what it said before comes next
            return self._received()
        except OSError:
            return b""

    def _take(self, said: dict[str, Any]) -> None:
        if "started" in said:
            _settle(self._started, said["started"])
        if "refused" in said:
            _settle(self._started, OSError(said["errno"], said["refused"]))
        if "exited" in said:
            _settle(self._exited, said["exited"])
        if "stuck" in said:
            _settle(self._stuck, said["stuck"])
        if "empty" in said or "refused" in said:
            _settle(self.empty, None)

    def _close(self) -> None:
        """The supervisor has ended: by itself, once its tree is empty, or it was killed."""
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
        future.exception()  # who does not ask for it need not hear of it
    else:
        future.set_result(value)


class Launcher:
    """Starts commands below supervisors. Its process is started with the first of them."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._refused_views: dict[str, str] = {}

    @staticmethod
    def is_possible() -> bool:
        return sys.platform == "linux"

    async def start(self, program: SupervisedProgram, out: int, err: int) -> SupervisedCommand:
        """The supervisor has its order; `started` says what became of it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = memory_file(program.encoded())
        try:
            await self._send((theirs.fileno(), request, out, err))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(request)
        return SupervisedCommand(ours)

    async def why_no_view(self, target: str) -> str:
        """Why no folder can be seen at `target` instead of where it is; empty: it can. Tried once."""
        if target not in self._refused_views:
            program = SupervisedProgram((), {}, "/", View(Path(target), target))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                trial = await self.start(program, nowhere, nowhere)
            finally:
                os.close(nowhere)
            try:
                await trial.started()
                self._refused_views[target] = ""
            except OSError as error:
                self._refused_views[target] = str(error.strerror)
        return self._refused_views[target]

    async def close(self) -> None:
        """Ends whatever is left of the commands, too."""
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
                except OSError as error:  # somebody has killed it
                    if is_last:
                        raise RuntimeFailure(f"the launcher of commands is gone: {error.strerror}") from error
                    await self.close()

    async def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", supervisor_main.__file__, str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={OWNER: owner()},
                    cwd="/",
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours
        return ours


async def _send(control: socket.socket, descriptors: tuple[int, ...]) -> None:
    while True:
        try:
            socket.send_fds(control, [b"+"], list(descriptors))
            return
        except OSError as error:
            if error.errno not in BUSY:
                raise
        await asyncio.sleep(BUSY_S)
