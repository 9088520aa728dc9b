"""Slow work in a thread of its own. A pool has an end, and others wait for it: a folder that takes a second to
remove, or a file system that does not answer at all, must hold up nobody else.

The threads are started without `threading.Thread`, whose `start` makes the event loop wait until the new thread
has had its first turn: on a busy machine that takes milliseconds. A process that exits does not wait for them.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_thread(
    work: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """As `asyncio.to_thread`, without its pool. A cancel does not reach the thread."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            set_outcome(value)

    def run() -> None:
        try:
            said = (outcome.set_result, work(*arguments, **named))
        except BaseException as error:
            said = (outcome.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle, *said)

    _thread.start_new_thread(run, ())
    return await outcome
