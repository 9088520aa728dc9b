"""How busy run slots are when set-up and verdict are slow: isolated pools and a READY buffer, against one pool.

    python benchmarks/pipeline.py [--sessions 100] [--rounds 3] [--write]

Sessions sleep through their stages: INIT and POSTRUN are slow, RUNNING is short, as with containers to build and
test suites to run around a quick agent. Three ways to spend workers, in the same run:

- isolated: Polar's pipeline, a pool for each stage and a READY buffer;
- shared: one pool with as many workers as all pools of `isolated`; a session keeps its worker through all stages;
- whole sessions: a run slot does everything of its session, one session after another.

In all of them no more sessions run at once than there are run slots, because the engine behind them is what is
scarce. Utilisation is the time in which run slots were busy, divided by slots x wall time, from the first lease to
the last result. `--write` puts the table into docs/performance.md.
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

from page import origin, table, write_section
from pipeline_stubs import StubSlots, stub_task

from polar.config import PoolConfig
from polar.data.source import TaskFileSource
from polar.gateway.calls.policy_gate import PolicyGate
from polar.runtimes.host.supervisor import Launcher
from polar.session.live import LiveSession, Services
from polar.session.pipeline import Pipeline
from polar.store.paths import RunPaths
from polar.types import SessionResult, Stage, TaskRequest, Trajectory

RUN_SLOTS = 4


@dataclass(frozen=True)
class Workload:
    """Mean seconds of each stage; a session's own lie between half and one and a half of them."""

    name: str
    init_s: float
    run_s: float
    postrun_s: float
    pools: PoolConfig

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
)


class BusyClock:
    """A watcher that sums the time sessions spend in RUNNING."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._since: dict[str, float] = {}

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        now = time.monotonic()
        if stage is Stage.RUNNING:
            self._since[session_id] = now
        elif session_id in self._since:
            self.busy_s += now - self._since.pop(session_id)


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


async def utilisation(way: str, workload: Workload, sessions: int, seed: int) -> float:
    results: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)

    clock = BusyClock()
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher()
        paths = RunPaths.create(Path(folder))
        services = Services(StubSlots(), PolicyGate(), paths, (clock,), launcher=launcher)
        pipeline = make(way, workload.pools, services, TaskFileSource(workload.tasks(sessions, seed), keep))
        begun = time.monotonic()
        await pipeline.serve()
        wall_s = time.monotonic() - begun
        await launcher.close()
    broken = [result.failure for result in results if result.stage is not Stage.COMPLETED]
    if broken or len(results) != sessions:
        raise SystemExit(f"{len(broken)} of {len(results)} sessions failed: {broken[:1]}")
    return clock.busy_s / (RUN_SLOTS * wall_s)


WAYS = ("isolated", "shared", "whole sessions")


async def row(workload: Workload, sessions: int, rounds: int) -> list[str]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(rounds):
        for way in WAYS:
            found[way].append(await utilisation(way, workload, sessions, seed))
    pools = workload.pools
    sizes = f"{pools.init} / {pools.running} / {pools.postrun}"
    return [workload.name, sizes, *(f"{median(values):.0%}" for values in found.values())]


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
    head = ["seconds of INIT / RUNNING / POSTRUN", "pools", *WAYS]
    command = f"python benchmarks/pipeline.py --sessions {options.sessions} --rounds {options.rounds} --write"
    text = f"{table(head, rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("pipeline", text)


if __name__ == "__main__":
    asyncio.run(main())
