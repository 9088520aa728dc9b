"""How busy run slots are when set-up and verdict are slow: isolated pools and a READY buffer, against one pool.

    python benchmarks/pipeline.py [--sessions 100] [--rounds 3] [--write]

Sessions sleep through their stages: INIT and POSTRUN are slow, RUNNING is short, as with containers to build and
test suites to run around a quick agent. Three ways to spend workers, in the same run:

- isolated: Polar's pipeline, a pool for each stage and a READY buffer;
- shared: one pool with as many workers as all pools of `isolated`; a session keeps its worker through all stages;
- whole sessions: a run slot does everything of its session, one session after another.

In all of them no more sessions run at once than there are run slots, because the engine behind them is what is
scarce. Utilisation is the time in which run slots were busy, divided by slots x wall time: of the whole run, from
the first lease to the last result; and, for `isolated`, steady, from when all run slots were first busy until the
last lease. The ceiling is what the pools allow: with too few workers for INIT, the run slots are not fed.
`--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from page import origin, table, write_section
from pipeline_stubs import StubSlots, stub_task

from polar.config import PoolConfig
from polar.data.source import TaskFileSource
from polar.gateway.calls.policy_gate import PolicyGate
from polar.runtimes.host.supervisor import Launcher
from polar.session.live import LiveSession, Services
from polar.session.pipeline import Pipeline
from polar.store.paths import RunPaths
from polar.types import Lease, SessionResult, Stage, TaskRequest, Trajectory

RUN_SLOTS = 4


@dataclass(frozen=True)
class Workload:
    """Mean seconds of each stage; a session's own lie between half and one and a half of them."""

    name: str
    init_s: float
    run_s: float
    postrun_s: float
    pools: PoolConfig

    @property
    def ceiling(self) -> float:
        """Of steady utilisation: sessions a second that INIT can feed, against those of the run slots."""
        return min(1.0, self.pools.init / self.init_s * self.run_s / self.pools.running)

    def tasks(self, sessions: int, seed: int) -> list[TaskRequest]:
        chance = random.Random(seed)
        means = (self.init_s, self.run_s, self.postrun_s)
        rows = [[mean * chance.uniform(0.5, 1.5) for mean in means] for _ in range(sessions)]
        return [stub_task(f"t{number}", *row) for number, row in enumerate(rows)]


def _pools(init: int, postrun: int) -> PoolConfig:
    return PoolConfig(init=init, ready=init + RUN_SLOTS, running=RUN_SLOTS, postrun=postrun)


WORKLOADS = (
    Workload("0.2 / 0.1 / 0.05", 0.2, 0.1, 0.05, _pools(10, 3)),
    Workload("0.2 / 0.1 / 0.2", 0.2, 0.1, 0.2, _pools(10, 10)),
    Workload("0.1 / 0.1 / 0.4", 0.1, 0.1, 0.4, _pools(5, 20)),
    Workload("0.2 / 0.1 / 0.05, too few for INIT", 0.2, 0.1, 0.05, _pools(4, 3)),
)


class RunSlots(asyncio.Semaphore):
    """The run slots of a pipeline; notes how many are busy, and since when. A session's stage does not tell: it
    stays RUNNING while it waits for POSTRUN, without a slot."""

    def __init__(self) -> None:
        super().__init__(RUN_SLOTS)
        self._changes: list[tuple[float, int]] = [(time.monotonic(), 0)]

    @property
    def first_full(self) -> float | None:
        return next((at for at, busy in self._changes if busy == RUN_SLOTS), None)

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self._note(1)
        return True

    def release(self) -> None:
        super().release()
        self._note(-1)

    def share(self, begin: float, end: float) -> float:
        """Of the slots' time between these two."""
        ends = [*(at for at, _ in self._changes[1:]), end]
        parts = (
            (max(begin, at), min(end, until), busy) for (at, busy), until in zip(self._changes, ends, strict=True)
        )
        return sum(busy * max(0.0, until - at) for at, until, busy in parts) / (RUN_SLOTS * (end - begin))

    def _note(self, more: int) -> None:
        self._changes.append((time.monotonic(), self._changes[-1][1] + more))


class TimedSource(TaskFileSource):
    last_lease = 0.0

    async def lease(self, room: int) -> list[Lease]:
        if leases := await super().lease(room):
            self.last_lease = time.monotonic()
        return leases


@dataclass(frozen=True)
class Utilisation:
    whole: float
    steady: float


class OnePool(Pipeline):
    """Workers that each take a session through all its stages; run slots stay as scarce as they are."""

    def __init__(self, workers: int, services: Services, source: TaskFileSource) -> None:
        pools = PoolConfig(init=workers, ready=workers, running=RUN_SLOTS, postrun=workers)
        super().__init__(pools, services, source)
        self._workers = asyncio.Semaphore(workers)

    async def _stages(self, live: LiveSession, place: object) -> None:
        async with self._workers:
            await super()._stages(live, place)  # pyright: ignore


def make(way: str, pools: PoolConfig, services: Services, source: TaskFileSource) -> Pipeline:
    if way == "isolated":
        return Pipeline(pools, services, source)
    workers = RUN_SLOTS if way == "whole sessions" else pools.init + pools.running + pools.postrun
    return OnePool(workers, services, source)


async def utilisation(way: str, workload: Workload, sessions: int, seed: int) -> Utilisation:
    results: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)

    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher()
        paths = RunPaths.create(Path(folder))
        services = Services(StubSlots(), PolicyGate(), paths, (), launcher=launcher)
        source = TimedSource(workload.tasks(sessions, seed), keep)
        pipeline = make(way, workload.pools, services, source)
        slots = pipeline._running = RunSlots()  # pyright: ignore
        begun = time.monotonic()
        await pipeline.serve()
        ended = time.monotonic()
        await launcher.close()
    broken = [result.failure for result in results if result.stage is not Stage.COMPLETED]
    if broken or len(results) != sessions:
        raise SystemExit(f"{len(broken)} of {len(results)} sessions failed: {broken[:1]}")
    full = slots.first_full or begun  # with too few workers before them, not all run slots are ever busy
    return Utilisation(slots.share(begun, ended), slots.share(full, source.last_lease))


WAYS = ("isolated", "shared", "whole sessions")


async def row(workload: Workload, sessions: int, rounds: int) -> list[str]:
    found: dict[str, list[Utilisation]] = {way: [] for way in WAYS}
    for seed in range(rounds):
        for way in WAYS:
            found[way].append(await utilisation(way, workload, sessions, seed))
    pools = workload.pools
    sizes = f"{pools.init} / {pools.running} / {pools.postrun}"
    steady = median(each.steady for each in found["isolated"])
    whole = (median(each.whole for each in values) for values in found.values())
    return [workload.name, sizes, *(f"{value:.0%}" for value in (workload.ceiling, steady, *whole))]


def chosen(names: Sequence[str]) -> list[Workload]:
    return [workload for workload in WORKLOADS if not names or workload.name in names]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sessions", type=int, default=100, help="in each round")
    parser.add_argument("--rounds", type=int, default=3, help="the table has medians")
    parser.add_argument("--workload", action="append", default=[], help="a row by its name; all when absent")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    rows = [await row(workload, options.sessions, options.rounds) for workload in chosen(options.workload)]
    head = ["seconds of INIT / RUNNING / POSTRUN", "pools", "ceiling", "isolated, steady", *WAYS]
    command = f"python benchmarks/pipeline.py --sessions {options.sessions} --rounds {options.rounds} --write"
    text = f"{table(head, rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("pipeline", text)


if __name__ == "__main__":
    asyncio.run(main())
