"""Slow work in a thread of its own, and work that a cancellation does not stop.

A thread pool is finite: a folder that takes a second to remove, or a file system that does not answer, would hold
up others. The threads are started without `threading.Thread`, whose `start` makes the event loop wait for the new
thread's first turn: milliseconds on a busy machine. A process that exits does not wait for them.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_thread(
    work: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """Like `asyncio.to_thread`, without its pool. Cancelling it does not stop the thread."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            set_outcome(value)

    def run() -> None:
        try:
            settled = (outcome.set_result, work(*arguments, **named))
        except BaseException as error:
            settled = (outcome.set_exception, error)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    _thread.start_new_thread(run, ())
    return await outcome


async def to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Runs `work` to its end even if cancelled meanwhile; raises the cancellation afterwards."""
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


def in_loop(work: Callable[[], Awaitable[Result]]) -> Result:
    """For a plain function that a running event loop may call, such as one that reads a task file."""

    async def run() -> Result:
        return await work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()
