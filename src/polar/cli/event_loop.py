"""What commands that serve run on: uvloop, whose HTTP costs less processor time, and enough open files for a
thousand sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

OPEN_FILES = 65_536
"""A session in flight takes about ten, and the usual limit is 1,024. No more than this: harnesses inherit the
limit, and some programs go through all numbers below it when they start."""


def run_served(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop; on asyncio's own loop where uvloop does not exist, as on Windows."""
    allow_open_files()
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


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
