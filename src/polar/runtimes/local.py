"""The `local` runtime: plain processes in a folder of their own. It contains nothing, and says so.

It gives a session its own workspace, home and temporary folder, a small environment, logs with a cap, and a
total end; it does not keep a process from reading the node's files or using its network.

A child that a command leaves in the background lives on after the command: a harness may start a server in one
step and use it in the next. It ends with `kill` or `stop`, or when the command that started it is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Finished, Place
from polar.runtimes.folders import inside, read_file, remove_tree, write_file
from polar.runtimes.output import CappedLog, Pump
from polar.runtimes.processes import OWNER, Family, end, owner
from polar.types import Strict, is_id

FOLDERS = ("work", "home", "tmp")
MARKER = "POLAR_PLACE"
INHERITED = ("PATH", "LANG", "LC_ALL")


class LocalOptions(Strict):
    output_cap_bytes: int = Field(default=10 * 2**20, gt=0)
    """Of each log file."""
    tail_bytes: int = Field(default=8192, gt=0)
    """How much of the end of each output a `Finished` carries."""
    kill_grace_s: float = Field(default=2.0, ge=0)
    """Between asking a process to end and killing it."""


class LocalRuntime:
    Options: type[BaseModel] = LocalOptions

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._place: Place | None = None
        self._stopped = False
        self._stopping = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._pumps: set[Pump] = set()

    async def start(self, place: Place) -> None:
        """Begins afresh: what a node that died has left of this place is ended and removed first."""
        root = place.root.absolute()
        left = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
        if strangers := [name for name in left if name not in FOLDERS]:
            raise RuntimeFailure(f"{root} is not a session's own folder: it holds {strangers[0]!r}")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._place = Place(place.session_id, root.resolve(), place.logs)
        if left:
            await end(self._family(), grace_s=0)
        for name in FOLDERS:
            await asyncio.to_thread(remove_tree, self._place.root / name)
            (self._place.root / name).mkdir(mode=0o700)
        place.logs.mkdir(parents=True, exist_ok=True)

    async def exec(self, command: Command) -> Finished:
        place, number = self._alive(), next(self._numbers)
        out, err = self._pump(place, command, "stdout"), self._pump(place, command, "stderr")
        process: asyncio.subprocess.Process | None = None
        try:
            process = await self._spawn(place, number, command, (out, err))
            self._running.add(process.pid)
            exit_code = await process.wait()
            await out.drain()
            await err.drain()
        except BaseException:
            await to_the_end(self._break_off(self._mark(place, number), process, (out, err)))
            raise
        finally:
            if process is not None:
                self._running.discard(process.pid)
                self._ended.add(process.pid)
        return Finished(exit_code, out.log.tail(), err.log.tail())

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        base = Path(self.home if home else self.workspace)
        mode = (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)
        await asyncio.to_thread(write_file, inside(base, path), content, mode)

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(read_file, inside(Path(self.workspace), path))

    async def kill(self) -> None:
        if self._place is not None:
            await to_the_end(self._kill())

    async def stop(self) -> None:
        self._stopped = True
        if self._place is not None:
            await to_the_end(self._stop(self._place))

    @property
    def workspace(self) -> str:
        return str(self._started().root / "work")

    @property
    def home(self) -> str:
        return str(self._started().root / "home")

    def _started(self) -> Place:
        if self._place is None:
            raise RuntimeFailure("the runtime is not started")
        return self._place

    def _alive(self) -> Place:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        return self._started()

    def _pump(self, place: Place, command: Command, stream: str) -> Pump:
        if not is_id(command.log_name):
            raise RuntimeFailure(f"{command.log_name!r} cannot be the name of a log")
        path = place.logs / f"{command.log_name}.{stream}"
        options = self._options
        pump = Pump(CappedLog(path, cap_bytes=options.output_cap_bytes, tail_bytes=options.tail_bytes))
        self._pumps.add(pump)
        pump.ended.add_done_callback(lambda _: self._pumps.discard(pump))
        return pump

    async def _spawn(
        self, place: Place, number: int, command: Command, pumps: tuple[Pump, Pump]
    ) -> asyncio.subprocess.Process:
        cwd = inside(place.root / "work", command.cwd)
        if not cwd.is_dir():
            raise RuntimeFailure(f"the workspace has no folder {command.cwd!r}")
        out, err = pumps
        await out.start()
        await err.start()
        self._alive()  # a process that begins behind the back of a `stop` would outlive it
        try:
            return await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,  # harnesses wait for ever at an open idle pipe
                stdout=out.write_fd,
                stderr=err.write_fd,
                cwd=cwd,
                env=self._environment(place, number, command),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise RuntimeFailure(_why_not(command, error)) from error
        finally:
            out.release_writer()
            err.release_writer()

    def _environment(self, place: Place, number: int, command: Command) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        marker, _, value = self._mark(place, number).partition("=")
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            **inherited,
            "HOME": self.home,
            "TMPDIR": str(place.root / "tmp"),
            **command.env,
            "POLAR_SESSION": place.session_id,
            OWNER: owner(),
            marker: value,
        }

    def _mark(self, place: Place, number: int) -> str:
        """Stands in the environment of all that a command starts; its beginning is the same for the place."""
        return f"{MARKER}={place.root}:{number}"

    def _family(self) -> Family:
        marker = f"{MARKER}={self._started().root}:".encode()
        return Family(marker, frozenset(self._running), frozenset(self._ended))

    async def _break_off(
        self, mark: str, process: asyncio.subprocess.Process | None, pumps: tuple[Pump, ...]
    ) -> None:
        leaders = frozenset({process.pid} if process else ())
        await end(Family(f"{mark}\0".encode(), leaders), grace_s=self._options.kill_grace_s)
        if process is not None:
            await process.wait()
        await close_all(pumps)

    async def _kill(self) -> None:
        await end(self._family(), grace_s=self._options.kill_grace_s)

    async def _stop(self, place: Place) -> None:
        async with self._stopping:
            await self._kill()
            await close_all(tuple(self._pumps))
            await asyncio.to_thread(remove_tree, place.root)


def _why_not(command: Command, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"cannot start {command.argv[0]!r}: there is no such program"
    return f"cannot start {command.argv[0]!r}: {error}"


async def close_all(pumps: tuple[Pump, ...]) -> None:
    for pump in pumps:
        await pump.drain()
        await pump.close()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    task.result()
