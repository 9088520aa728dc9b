"""How long INIT takes with runtimes that were started ahead (`pools.warm`), and without them.

    python benchmarks/warm_pool.py [--waves 4] [--size 3] [--idle 4] [--run 1] [--write]

Real sessions in each contained runtime that this machine has, without a model: the agent is a command that sleeps.
Two kinds of load. Bursts: waves of sessions with an idle time between them, as on a node that waits for a trainer;
INIT of all waves but the first counts. Steady: the same number of sessions without a pause, where the READY buffer
already sets sessions up ahead; the time of the whole load counts. With and without take turns, so that both have
the same neighbours on the machine. `--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from page import origin, table, write_section
from pipeline_stubs import StubSlots

from polar import registry
from polar.config import PoolConfig
from polar.gateway.calls.policy_gate import PolicyGate
from polar.runtimes.host.supervisor import Launcher
from polar.session.live import Services
from polar.session.pipeline import Pipeline
from polar.store.paths import RunPaths
from polar.types import Lease, Session, SessionResult, Spec, Stage, TaskRequest, Trajectory

RUNTIMES = ("bubblewrap", "docker", "apptainer")


class Waves:
    """A source that gives `size` sessions at once, waits for their results and `idle_s` more, and repeats."""

    def __init__(self, task: TaskRequest, waves: int, size: int, idle_s: float) -> None:
        self._task = task
        self._left = [[f"{task.task_id}-{wave}-{n}" for n in range(size)] for wave in range(waves)]
        self._idle_s = idle_s
        self._open = 0
        self._all_reported = asyncio.Event()
        self.results: list[SessionResult] = []

    async def lease(self, room: int) -> list[Lease]:
        if self._left and not self._left[0]:
            await self._all_reported.wait()
            await asyncio.sleep(self._idle_s)
            self._left.pop(0)
        if not self._left:
            return []
        self._all_reported.clear()
        ids, self._left[0] = self._left[0][:room], self._left[0][room:]
        self._open += len(ids)
        if len(self._left) == 1 and not self._left[0]:
            self._left.pop(0)
        return [self._lease(session_id) for session_id in ids]

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self.results.append(result)
        self._open -= 1
        if not self._open:
            self._all_reported.set()

    def _lease(self, session_id: str) -> Lease:
        assert self._task.task_id is not None
        return Lease(session=Session(session_id=session_id, task_id=self._task.task_id, index=0), task=self._task)


def task(runtime: str, run_s: float) -> TaskRequest:
    return TaskRequest(
        task_id="t",
        instruction="Sleep.",
        runtime=Spec(name=runtime),
        harness=Spec(name="shell", options={"command": f"sleep {run_s}"}),
        builder=Spec(name="pipeline_stubs:StubBuilder"),
        evaluator=Spec(name="pipeline_stubs:StubEvaluator"),
    )


async def load(runtime: str, options: Any, *, warm: int, bursts: bool) -> tuple[float, float]:
    """Median of INIT, and seconds of the whole load."""
    waves, size = (options.waves, options.size) if bursts else (1, options.waves * options.size)
    source = Waves(task(runtime, options.run), waves, size, options.idle)
    at_once = options.size
    pools = PoolConfig(init=at_once, ready=at_once, running=at_once, postrun=at_once, warm=warm)
    with tempfile.TemporaryDirectory() as folder:
        launcher, began = Launcher(), time.monotonic()
        services = Services(StubSlots(), PolicyGate(), RunPaths.create(Path(folder)), (), launcher=launcher)
        await Pipeline(pools, services, source).serve()
        took_s = time.monotonic() - began
        await launcher.close()
    wrong = [result for result in source.results if result.stage is not Stage.COMPLETED]
    if wrong or len(source.results) != waves * size:
        raise SystemExit(f"{len(wrong)} of {len(source.results)} sessions failed: {wrong[:1]}")
    later = [result for result in source.results if not bursts or "-0-" not in result.session_id]
    return median(result.stage_s["INIT"] for result in later), took_s


async def row(runtime: str, options: Any) -> list[str]:
    init_s: dict[int, list[float]] = {0: [], options.size: []}
    steady_s: dict[int, list[float]] = {0: [], options.size: []}
    for _ in range(options.turns):
        for warm in (0, options.size):
            init_s[warm].append((await load(runtime, options, warm=warm, bursts=True))[0])
            steady_s[warm].append((await load(runtime, options, warm=warm, bursts=False))[1])
    cold, warmed = median(init_s[0]), median(init_s[options.size])
    steady = median(steady_s[0]) / median(steady_s[options.size])
    return [runtime, f"{cold:.2f} s", f"{warmed:.2f} s", f"{cold / warmed:.1f}", f"{steady:.2f}"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--waves", type=int, default=4)
    parser.add_argument("--size", type=int, default=3, help="sessions of a wave, and warm runtimes")
    parser.add_argument("--idle", type=float, default=4.0, help="seconds between waves")
    parser.add_argument("--run", type=float, default=1.0, help="seconds in which the agent works")
    parser.add_argument("--turns", type=int, default=2, help="how often with and without take turns")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    rows: list[list[str]] = []
    for runtime in RUNTIMES:
        if missing := await registry.find("runtime", runtime).lacking():
            print(f"{runtime} is not measured: {missing}")
            continue
        rows.append(await row(runtime, options))
    head = ["runtime", "INIT in bursts, cold", "warm", "ratio", "steady load: time without / with"]
    command = (
        f"python benchmarks/warm_pool.py --waves {options.waves} --size {options.size} --idle {options.idle:g} "
        f"--run {options.run:g} --turns {options.turns} --write"
    )
    text = f"{table(head, rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("warm-pool", text)


if __name__ == "__main__":
    asyncio.run(main())
