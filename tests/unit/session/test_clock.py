"""The clock of a run: its own time against `run_s`, waiting for its model against `wait_s`."""

from __future__ import annotations

import asyncio

from polar.session.clock import RunClock
from polar.types import Budgets, Waits
from waiting import hang_limit


class Meter:
    """Says that all of the time since its start went to waiting, from when it is switched on to when it is off."""

    def __init__(self, *, waiting: bool) -> None:
        self._since = asyncio.get_running_loop().time()
        self.waiting = waiting

    def read(self) -> Waits:
        passed_s = asyncio.get_running_loop().time() - self._since
        return Waits(engine_s=passed_s) if self.waiting else Waits()


async def run_out(clock: RunClock, work: asyncio.Event) -> bool:
    try:
        with clock:
            async with hang_limit(), clock.deadline:
                await work.wait()
    except TimeoutError:
        return True
    return False


async def test_time_of_its_own_runs_out() -> None:
    clock = RunClock(Budgets(run_s=0.05), Meter(waiting=False).read)
    assert await run_out(clock, asyncio.Event()) and clock.spent == "run_s"


async def test_waiting_costs_none_of_it_until_its_own_bound() -> None:
    clock = RunClock(Budgets(run_s=0.05, wait_s=0.4), Meter(waiting=True).read)
    assert await run_out(clock, asyncio.Event()) and clock.spent == "wait_s"
    assert clock.waits.total_s >= 0.4


async def test_work_that_ends_in_time_ends_the_clock() -> None:
    work = asyncio.Event()
    work.set()
    clock = RunClock(Budgets(), Meter(waiting=False).read)
    assert not await run_out(clock, work)
    assert clock.spent == "" and clock.waits == Waits()
