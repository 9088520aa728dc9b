"""What commands that serve run on: uvloop, whose HTTP costs less processor time, enough open files for a thousand
sessions, and a garbage collector that does not look at the program itself."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

OPEN_FILES = 65_536
"""A session in flight takes about ten, and the usual limit is 1,024. No more than this: harnesses inherit the
limit, and some programs go through all numbers below it when they start."""


def run_served(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop; on asyncio's own loop where uvloop does not exist, as on Windows."""
    allow_open_files()
    _keep_imports()
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def _keep_imports() -> None:
    """Modules, classes and functions are some 80,000 objects that stay as long as the process. Every full
    collection would look at all of them, for tens of milliseconds in which no event of any session is served."""
    gc.collect()
    gc.freeze()


def allow_open_files() -> int:
    """As many as `OPEN_FILES`, where the machine's hard limit allows it. Gives the limit; 0: there is none."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit
    except ImportError:  # Windows has no such limit
        return 0
    soft, hard = getrlimit(RLIMIT_NOFILE)
    most = OPEN_FILES if hard == RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != RLIM_INFINITY and soft < most:
        setrlimit(RLIMIT_NOFILE, (most, hard))
        soft = most
    return 0 if soft == RLIM_INFINITY else soft
