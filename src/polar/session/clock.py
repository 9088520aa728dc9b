"""The clock of RUNNING. It stops while the session waits for its model; that waiting has its own limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, Self

from polar.types import Budgets, Waits

SHORTEST_CHECK_S = 0.05
"""Between two checks of a clock that is stopped just before its end."""


@contextmanager
def paused(deadline: asyncio.Timeout) -> Generator[None]:
    """Time that passes inside does not count against the deadline."""
    loop, ends_s = asyncio.get_running_loop(), deadline.when()
    left_s = None if ends_s is None else ends_s - loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(None if left_s is None else loop.time() + left_s)


class RunClock:
    def __init__(self, budgets: Budgets, waits: Callable[[], Waits]) -> None:
        self._budgets = budgets
        self._read = waits
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.deadline = asyncio.timeout(None)
        """For the work; expires when a budget is spent."""
        self.spent: Literal["", "run_s", "wait_s"] = ""
        self.waits = Waits()
        """The waiting until a budget was spent or the work ended."""

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.spent:
            self.waits = self._read()

    def _check(self) -> None:
        """Only one of the two clocks runs at a time, so neither ends before the smaller remaining time has
        passed."""
        waits, now_s = self._read(), self._loop.time()
        run_left_s = self._budgets.run_s - (now_s - self._began_s - waits.total_s)
        wait_left_s = self._budgets.wait_s - waits.total_s
        left_s = min(run_left_s, wait_left_s)
        if left_s > 0:
            self._timer = self._loop.call_later(max(left_s, SHORTEST_CHECK_S), self._check)
            return
        self.spent, self.waits = ("wait_s" if wait_left_s <= 0 else "run_s"), waits
        self.deadline.reschedule(now_s)
