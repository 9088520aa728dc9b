"""What a benchmark measures, in a process of its own and on cores of its own, asked over a pipe.

A target answers commands: `start` serves and gives its address, `read` gives what the process has spent, any other
name is a method of the target. A process that waits for a command spends nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from polar.runs.event_loop import run_served

CORES = sorted(os.sched_getaffinity(0))


class Target(Protocol):
    async def start(self, stack: AsyncExitStack) -> str:
        """Serves; the URL it listens at."""
        ...

    def read(self) -> dict[str, float]:
        """Counts of its own, beside the processor time that every process has."""
        ...


def own_core() -> list[int]:
    """For the process that is measured; where there is one core, it is shared."""
    return CORES[:1]


def other_cores() -> list[int]:
    """For the stub and for who sends."""
    return CORES[1:] or CORES


def allow_open_files() -> None:
    """A session takes some files of each process; the usual soft limit of 1,024 ends at a few hundred sessions."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def _answer(make: Any, arguments: tuple[Any, ...], options: dict[str, Any], pipe: Any) -> None:
    target: Target = make(*arguments, **options)
    async with AsyncExitStack() as stack:
        pipe.send(await target.start(stack))
        while (command := await asyncio.to_thread(_received, pipe)) is not None:
            name, argument = command
            if name == "read":
                spent = {"cpu": time.process_time_ns() / 1000, "rss": float(rss_bytes())}
                pipe.send({**spent, **target.read()})
            else:
                answer = getattr(target, name)
                pipe.send(await (answer() if argument is None else answer(argument)))


def _received(pipe: Any) -> Any:
    try:
        return pipe.recv()
    except EOFError:  # who asks is gone
        return None


def _run(make: Any, arguments: tuple[Any, ...], options: dict[str, Any], pipe: Any, cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)
    allow_open_files()
    run_served(_answer(make, arguments, options, pipe))


class Process:
    """A target in another process, from the side of who asks. On what commands that serve run on."""

    def __init__(self, make: Any, *arguments: Any, cores: Sequence[int] = CORES, **options: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        work = (make, arguments, options, theirs, list(cores))
        self._process = context.Process(target=_run, args=work, daemon=True)
        self._process.start()
        theirs.close()
        self.url: str = self._pipe.recv()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, name: str, argument: Any = None) -> Any:
        self._pipe.send((name, argument))
        return self._pipe.recv()

    def stop(self) -> None:
        with suppress(BrokenPipeError):  # it is gone already
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
