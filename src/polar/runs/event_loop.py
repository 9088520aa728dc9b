"""The event loop that sessions are served on: uvloop, whose HTTP costs less processor time, with enough open files
for a thousand sessions."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

OPEN_FILES = 65_536
"""A running session takes about ten, and the usual limit is 1,024. No more than this: harnesses inherit the
limit, and some programs go through all numbers below it when they start."""
STDERR = 2


def run_served(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a process that does nothing else."""
    allow_open_files()
    _keep_inherited()
    _keep_imports()
    return _run(main)


def run_apart(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` on an event loop in a thread of its own and waits for it. So it also works where this thread has
    a running loop, as in a notebook. Ctrl-C cancels `main` and raises `KeyboardInterrupt` once it has ended."""
    started = threading.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        started.set()
        return await main

    interrupted = False
    with ThreadPoolExecutor(1, thread_name_prefix="polar-run") as thread:
        future = thread.submit(_run, cancellable())
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt:
                if not interrupted and started.wait():
                    with suppress(RuntimeError):  # the loop was closed in this moment
                        tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return future.result()


def _run(main: Coroutine[Any, Any, T]) -> T:
    """On asyncio's own loop where uvloop does not exist, as on Windows."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - only on some systems
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def _keep_inherited() -> None:
    """Files that whoever started us has left open stay ours: uvloop closes nothing in a child, which may be a
    session."""
    opened = Path("/proc/self/fd")
    for descriptor in [int(path.name) for path in opened.iterdir()] if opened.exists() else ():
        if descriptor > STDERR:
            with suppress(OSError):  # the one that listed the others is closed again
                os.set_inheritable(descriptor, False)


def _keep_imports() -> None:
    """Modules, classes and functions are some 80,000 objects that stay as long as the process. Every full
    collection would look at all of them, for tens of milliseconds in which no event of any session is served."""
    gc.collect()
    gc.freeze()


def allow_open_files() -> int:
    """Raises the limit to `OPEN_FILES`, or to a lower hard limit. Returns the limit; 0: there is none."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit  # noqa: PLC0415
    except ImportError:  # Windows has no such limit
        return 0
    soft, hard = getrlimit(RLIMIT_NOFILE)
    most = OPEN_FILES if hard == RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != RLIM_INFINITY and soft < most:
        setrlimit(RLIMIT_NOFILE, (most, hard))
        soft = most
    return 0 if soft == RLIM_INFINITY else soft
