"""Slow work in a thread of its own. The event loop's default pool is small and others wait for it: a session's
folder that takes a second to remove must not hold up a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
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

    Thread(target=run, name=f"polar {getattr(work, '__name__', 'work')}").start()
    return await outcome
