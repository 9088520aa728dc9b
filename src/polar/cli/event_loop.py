"""The event loop of commands that serve: uvloop, which takes about a third of the processor time for HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_served(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop; on asyncio's own loop where uvloop does not exist, as on Windows."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
