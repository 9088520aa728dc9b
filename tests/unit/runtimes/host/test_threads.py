"""Work in threads: a hanging thread delays neither other work nor the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from polar.runtimes.host.threads import in_thread
from waiting import HANG_S, hang_limit


async def test_work_that_hangs_holds_up_no_other() -> None:
    released = threading.Event()
    hanging = [asyncio.create_task(in_thread(released.wait)) for _ in range(100)]
    async with hang_limit():
        assert await in_thread(sum, [1, 2]) == 3
        assert not any(task.done() for task in hanging)
        released.set()
        assert await asyncio.gather(*hanging) == [True] * 100


async def test_an_error_is_raised_where_the_work_is_awaited() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_cancel_leaves_the_work_running() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait()
        ended.set()

    task = asyncio.create_task(in_thread(work))
    async with hang_limit():
        assert await in_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        assert await in_thread(ended.wait)


GIVES_UP = """
import asyncio, threading
from contextlib import suppress
from polar.runtimes.host.threads import in_thread

async def main():
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await in_thread(threading.Event().wait)

asyncio.run(main())
print("over")
"""


def test_a_process_ends_though_work_hangs_in_it() -> None:
    ended = subprocess.run([sys.executable, "-c", GIVES_UP], capture_output=True, text=True, timeout=HANG_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n", "")
