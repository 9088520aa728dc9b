"""`polar` commands as child processes: kept running, restarted when they die, stopped together.

A child is in a session of its own, so Ctrl-C reaches only us, and we stop the children in order. A child's stdin
is a pipe that we hold: if we are killed the pipe closes, and the child stops by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from polar.back_off import BackOff
from polar.errors import PolarError
from polar.session.pipeline import to_the_end
from polar.store.private import private_file

SUPERVISED = "POLAR_SUPERVISED"
"""Set for a child: stop when stdin closes."""
STOP_S = 60.0
"""How long a child may take to stop; a node hands its sessions back in this time, after its drain."""
STEADY_S = 30.0
"""A child that lived this long was started correctly."""
QUICK_DEATHS = 5
"""A child that dies this often in a row before `STEADY_S` is given up."""
EXIT_REFUSED = 2


log = logging.getLogger("polar.children")


class ChildRefused(PolarError):
    """A child cannot run; restarting it would not help."""


class ChildCrashed(ChildRefused):
    """A child dies each time, and does not say why: its log may."""


async def _nothing() -> None:
    return None


@dataclass(frozen=True)
class ChildProgram:
    name: str
    arguments: Callable[[], Iterable[str]]
    """Of the `polar` command; called for each start."""
    log: Path | None = None
    """File for its output; None: our stderr."""
    died: Callable[[], Awaitable[None]] = field(default=_nothing)
    """Called after it died, before it is restarted."""
    drain_s: float = 0.0
    """How much longer than `STOP_S` it may take to stop."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Besides ours. Not shown: it may hold a token."""


@asynccontextmanager
async def running(*programs: ChildProgram) -> AsyncGenerator[None]:
    """Keeps the programs running while the body runs, then stops them. If one cannot run, cancels the body and
    raises `ChildRefused`."""
    try:
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(_keep(program)) for program in programs]
            try:
                yield
            finally:
                for task in keepers:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise _one_of(errors) from None


def stop_requested(hurry: asyncio.Event | None = None) -> asyncio.Event:
    """Set on Ctrl-C or SIGTERM, or when the supervisor that started us is gone. `hurry` is set on a second signal,
    and without the supervisor."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    hurry = hurry or asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()
            hurry.set()

    if os.environ.pop(SUPERVISED, None):
        loop.add_reader(0, look)
    return stop


async def _keep(program: ChildProgram) -> None:
    back_off = BackOff(first_s=0.5, longest_s=30.0)
    quick_deaths = 0
    while True:
        started = time.monotonic()
        code = await _run_once(program)
        await program.died()
        if time.monotonic() - started > STEADY_S:
            quick_deaths = 0
            back_off.reset()
        quick_deaths += 1
        if code == EXIT_REFUSED:
            raise ChildRefused(f"{program.name} does not run: {_last_line(program.log)}")
        if quick_deaths == QUICK_DEATHS:
            more = f"; see {program.log}" if program.log else ""
            raise ChildCrashed(f"{program.name} does not run: {_last_line(program.log)}{more}")
        log.warning("%s ended with code %s; restarting it", program.name, code)
        await asyncio.sleep(back_off.next_s())


async def _run_once(program: ChildProgram) -> int:
    # -P: modules in the current folder must not shadow ours.
    command = (sys.executable, "-P", "-c", "from polar.cli.app import main; main()", *program.arguments())
    with _output(program.log) as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **program.environment, SUPERVISED: "1"},
            start_new_session=True,
        )
    try:
        return await process.wait()
    finally:
        await to_the_end(_stop(process, program))


async def _stop(process: asyncio.subprocess.Process, program: ChildProgram) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S + program.drain_s):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await program.died()


def _output(log: Path | None) -> IO[bytes]:
    return open(os.dup(2), "wb") if log is None else open(log, "ab", opener=private_file)


def _last_line(log: Path | None) -> str:
    if log is None:
        return "see its output above"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("polar: ") if lines else f"see {log}"


def _one_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error: a command ends with one message."""
    first = errors.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    return first
