"""A command as a process of the node: no input, capped logs, its end awaited, and its break-off when cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished
from polar.runtimes.host.output import CappedLog, Pump
from polar.runtimes.options import RuntimeOptions
from polar.types import is_id


class Child(Protocol):
    """A command that runs."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        ...


async def start_directly(job: Job, out: int, err: int) -> Child:
    """As a child of the node, on the event loop's own thread: a process that dies with its parent dies with that
    thread."""
    return await asyncio.create_subprocess_exec(
        *job.argv,
        stdin=asyncio.subprocess.DEVNULL,  # harnesses wait for ever at an open idle pipe
        stdout=out,
        stderr=err,
        cwd=job.cwd,
        env=job.env,
        start_new_session=True,
        pass_fds=job.pass_fds,
    )


class Job(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    """All of it."""
    cwd: Path
    log_name: str
    break_off: Callable[[Child | None], Awaitable[None]]
    """Ends all that the process has started, and itself; None when it did not start. Called when `run` is
    cancelled or fails."""
    began: Callable[[int], None] = lambda pid: None
    """Told the process id."""
    pass_fds: tuple[int, ...] = ()
    program: str = ""
    """What to call it in an error; empty: the first word."""
    start: Callable[[Job, int, int], Awaitable[Child]] = start_directly
    """Given the descriptors that take its output; no input, and a process group and session of its own."""


class Spawner:
    """Runs jobs of one runtime and keeps their logs."""

    def __init__(self, logs: Path, options: RuntimeOptions) -> None:
        self._logs = logs
        self._options = options
        self._pumps: set[Pump] = set()
        self._closed = False

    async def run(self, job: Job) -> Finished:
        out, err = self._pump(job.log_name, "stdout"), self._pump(job.log_name, "stderr")
        process: Child | None = None
        try:
            process = await self._spawn(job, out, err)
            job.began(process.pid)
            exit_code = await process.wait()
            out.drain()
            err.drain()
        except BaseException:
            await to_the_end(self._break_off(job, process, (out, err)))
            raise
        return Finished(exit_code, out.log.tail(), err.log.tail())

    async def close(self) -> None:
        """No job begins any more, and the logs end; the processes must be dead."""
        self._closed = True
        close_all(tuple(self._pumps))

    def refuse(self) -> None:
        """A process that begins behind the back of a `stop` would outlive it."""
        self._closed = True

    def _pump(self, log_name: str, stream: str) -> Pump:
        if not is_id(log_name):
            raise RuntimeFailure(f"{log_name!r} cannot be the name of a log")
        path, options = self._logs / f"{log_name}.{stream}", self._options
        pump = Pump(CappedLog(path, cap_bytes=options.output_cap_bytes, tail_bytes=options.tail_bytes))
        self._pumps.add(pump)
        pump.ended.add_done_callback(lambda _: self._pumps.discard(pump))
        return pump

    async def _spawn(self, job: Job, out: Pump, err: Pump) -> Child:
        out.start()
        err.start()
        if self._closed:
            raise RuntimeFailure("the runtime is stopped")
        try:
            return await job.start(job, out.write_fd, err.write_fd)
        except (OSError, ValueError) as error:
            raise RuntimeFailure(_why_not(job.program or job.argv[0], error)) from error
        finally:
            out.release_writer()
            err.release_writer()

    async def _break_off(self, job: Job, process: Child | None, pumps: tuple[Pump, ...]) -> None:
        try:
            await job.break_off(process)
            if process is not None:
                await process.wait()
        finally:
            close_all(pumps)


async def complaint_of(*argv: str, pass_fds: tuple[int, ...] = ()) -> str:
    """Runs a short program of the node's that only does something: the last it says where it fails, else nothing.
    FileNotFoundError where there is none."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=pass_fds,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/")},
    )
    try:
        _, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return ""
    return errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"


def _why_not(program: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {error}"


def close_all(pumps: tuple[Pump, ...]) -> None:
    for pump in pumps:
        pump.drain()
        pump.close()


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
