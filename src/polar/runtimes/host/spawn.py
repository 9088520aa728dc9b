"""Runs a command as a process of the node: no input, capped logs, and everything ended when it is cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished
from polar.runtimes.host.output import Pump, command_log
from polar.runtimes.host.threads import to_the_end
from polar.runtimes.options import RuntimeOptions


class Child(Protocol):
    """A running command."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        ...


async def start_directly(job: Job, out: int, err: int) -> Child:
    """As a child of the node, started on the event loop's own thread: a process that dies with its parent dies
    with the thread that started it."""
    return await asyncio.create_subprocess_exec(
        *job.argv,
        stdin=asyncio.subprocess.DEVNULL,  # harnesses wait forever at an open idle pipe
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
    """The whole environment."""
    cwd: Path
    log_name: str
    break_off: Callable[[Child | None], Awaitable[None]]
    """Ends the process and all that it started; called with None if it did not start. Called when `run` is
    cancelled or fails."""
    began: Callable[[int], None] = lambda pid: None
    """Called with the process id."""
    pass_fds: tuple[int, ...] = ()
    program: str = ""
    """Its name in error messages; empty: the first word."""
    start: Callable[[Job, int, int], Awaitable[Child]] = start_directly
    """Starts it with the descriptors for its output, without input, in a process group and session of its own."""


class Spawner:
    """Runs the jobs of one runtime and writes their logs."""

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
        """Starts no more jobs and closes the logs; the processes must be dead."""
        self._closed = True
        close_all(tuple(self._pumps))

    def refuse(self) -> None:
        """Starts no more jobs: one that starts during `stop` would outlive it."""
        self._closed = True

    def _pump(self, log_name: str, stream: str) -> Pump:
        pump = Pump(command_log(self._logs, log_name, stream, self._options))
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


async def errors_of(
    *argv: str, env: dict[str, str] | None = None, cwd: Path | None = None, pass_fds: tuple[int, ...] = ()
) -> tuple[int, str]:
    """Runs a short program of the node for its effect: its exit code and what it wrote to stderr. Raises
    FileNotFoundError if it is not installed."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=pass_fds,
        env=env,
        cwd=cwd,
    )
    try:
        _, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return await process.wait(), errors.decode(errors="replace").strip()


async def complaint_of(*argv: str, pass_fds: tuple[int, ...] = ()) -> str:
    """The last line a program writes to stderr if it fails; empty: it succeeded. It inherits only PATH and
    HOME."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/")}
    exit_code, errors = await errors_of(*argv, env=env, pass_fds=pass_fds)
    return (errors.rpartition("\n")[2] or f"exit code {exit_code}") if exit_code else ""


def _why_not(program: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {error}"


def close_all(pumps: tuple[Pump, ...]) -> None:
    for pump in pumps:
        pump.drain()
        pump.close()
