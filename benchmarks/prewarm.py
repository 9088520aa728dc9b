"""How long POSTRUN takes with the evaluator's own runtime started while the agent works, and started afterwards.

    python benchmarks/prewarm.py [--sessions 8] [--at-once 2] [--run 5] [--prepare 0 --prepare 3] [--write]

Real sessions in each runtime that this machine has: the agent is a command that sleeps and writes a file, and
`test_on_output` judges it in a runtime of its own. The task's prepare step stands for installing what the tests
need; the evaluator's runtime has to run it too. There is no model: what is measured begins when the harness has
ended. The two ways take turns, so that both have the same neighbours on the machine. `--write` puts the table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from page import origin, table, write_section
from pipeline_stubs import StubSlots

from polar import registry
from polar.config import PoolConfig
from polar.data.source import TaskFileSource
from polar.gateway.calls.policy_gate import PolicyGate
from polar.runtimes.host.supervisor import Launcher
from polar.session.live import Services
from polar.session.pipeline import Pipeline
from polar.store.paths import RunPaths
from polar.types import SessionResult, Spec, Stage, TaskRequest, Trajectory

RUNTIMES = ("bubblewrap", "docker", "apptainer")


def task(number: int, runtime: str, run_s: float, prepare_s: float) -> TaskRequest:
    return TaskRequest(
        task_id=f"t{number}",
        instruction="Write hello into answer.txt.",
        runtime=Spec(name=runtime),
        harness=Spec(name="shell", options={"command": f"sleep {run_s}; echo hello >answer.txt"}),
        builder=Spec(name="pipeline_stubs:StubBuilder"),
        evaluator=Spec(name="test_on_output", options={"command": "cat answer.txt", "expect_pattern": "^hello$"}),
        files={"given.txt": "given"},
        prepare=(f"sleep {prepare_s}",) if prepare_s else (),  # pyright: ignore[reportArgumentType]
    )


async def results(tasks: list[TaskRequest], at_once: int, *, prewarm: bool) -> list[SessionResult]:
    found: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        found.append(result)

    pools = PoolConfig(init=at_once, ready=at_once, running=at_once, postrun=at_once, prewarm=prewarm)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher()
        services = Services(StubSlots(), PolicyGate(), RunPaths.create(Path(folder)), (), launcher=launcher)
        await Pipeline(pools, services, TaskFileSource(tasks, keep)).serve()
        await launcher.close()
    wrong = [result for result in found if result.stage is not Stage.COMPLETED or result.reward != 1.0]
    if wrong or len(found) != len(tasks):
        raise SystemExit(f"{len(wrong)} of {len(found)} sessions were not rewarded: {wrong[:1]}")
    return found


async def row(runtime: str, prepare_s: float, options: Any) -> list[str]:
    postrun_s: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(0, options.sessions, options.at_once):
        tasks = [task(turn + n, runtime, options.run, prepare_s) for n in range(options.at_once)]
        for prewarm, found in postrun_s.items():
            ended = await results(tasks, options.at_once, prewarm=prewarm)
            found.extend(result.stage_s["POSTRUN"] for result in ended)
    warm, cold = median(postrun_s[True]), median(postrun_s[False])
    return [runtime, f"{prepare_s:g} s", f"{cold:.2f} s", f"{warm:.2f} s", f"{cold / warm:.1f}"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sessions", type=int, default=8, help="of each way")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--run", type=float, default=5.0, help="seconds in which the agent works")
    parser.add_argument("--prepare", type=float, action="append", help="seconds of the prepare step")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    prepares = options.prepare or [0.0, 3.0]
    rows: list[list[str]] = []
    for runtime in RUNTIMES:
        if missing := await registry.find("runtime", runtime).lacking():
            print(f"{runtime} is not measured: {missing}")
            continue
        rows += [await row(runtime, prepare_s, options) for prepare_s in prepares]
    head = ["runtime", "prepare step", "POSTRUN, started afterwards", "POSTRUN, prewarmed", "ratio"]
    given = " ".join(f"--prepare {each:g}" for each in prepares)
    command = (
        f"python benchmarks/prewarm.py --sessions {options.sessions} --at-once {options.at_once} "
        f"--run {options.run:g} {given} --write"
    )
    text = f"{table(head, rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("prewarm", text)


if __name__ == "__main__":
    asyncio.run(main())
