"""How often the default model solves each task of a file, through the real pi and the real node.

    python benchmarks/demo_rates.py [TASKS] [--samples 20] [--unshared]

Prints solved sessions, the rate and its 95 % Wilson interval per task, and what the engine evaluated: prompt
tokens per session, and those it found in its caches. TASKS is examples/demo.toml unless another file is given, so
that wordings can be tried before they stand there. `--unshared` lets each session evaluate its whole prompt, to
compare. Processor seconds are of this process and all it started.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import resource
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.node import open_node
from polar.store.paths import RunPaths
from polar.types import SessionResult, Spec, TaskRequest, Trajectory

DEMO = Path(__file__).parent.parent / "examples" / "demo.toml"
Z_95 = 1.96
WANTED = (0.2, 0.8)
"""Between these a group of samples shows a contrast most of the time."""


def wilson(solved: int, samples: int) -> tuple[float, float]:
    """The 95 % interval of a rate."""
    rate, z2 = solved / samples, Z_95**2
    middle = (rate + z2 / (2 * samples)) / (1 + z2 / samples)
    half = Z_95 * math.sqrt(rate * (1 - rate) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, middle - half), min(1.0, middle + half)


async def run(tasks: Sequence[TaskRequest], *, shared: bool) -> tuple[list[SessionResult], dict[str, Any]]:
    results: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)

    with tempfile.TemporaryDirectory() as folder:
        config = Config(engine=Spec(name="embedded", options={"share_prefixes": shared}))
        async with open_node(config, RunPaths.create(Path(folder))) as node:
            await node.serve(TaskFileSource(list(tasks), keep))
            return results, node.engine.counters()


def report(tasks: Sequence[TaskRequest], results: Sequence[SessionResult], counters: dict[str, Any]) -> str:
    lines = ["| task | instruction | solved | rate | 95 % | within 0.2 to 0.8 |", "|---|---|---|---|---|---|"]
    scored = [result for result in results if result.score is not None and result.score.reward is not None]
    samples = Counter(result.task_id for result in scored)
    solved = Counter(r.task_id for r in scored if r.score is not None and r.score.reward == 1.0)
    for task in tasks:
        n, good = samples[str(task.task_id)], solved[str(task.task_id)]
        if not n:
            lines.append(f"| {task.task_id} | {task.instruction} | no session was scored | | | |")
            continue
        low, high = wilson(good, n)
        within = "yes" if WANTED[0] <= good / n <= WANTED[1] else "no"
        interval = f"{low:.2f} to {high:.2f}"
        lines.append(
            f"| {task.task_id} | {task.instruction} | {good} of {n} | {good / n:.2f} | {interval} | {within} |"
        )
    return "\n".join([*lines, "", *_costs(len(results), counters)])


def _costs(sessions: int, counters: dict[str, Any]) -> list[str]:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    names = ("evaluated_tokens", "cached_tokens", "sampled_tokens")
    per_session = {name: f"{counters[name] / sessions:.0f}" for name in names}
    return [
        f"{sessions} sessions, {counters['calls']} calls; per session "
        + ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in per_session.items()),
        f"{cpu_s:.0f} processor seconds, {cpu_s / sessions:.1f} per session",
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("tasks", type=Path, nargs="?", default=DEMO)
    parser.add_argument("--samples", type=int, default=20, help="of each task")
    parser.add_argument("--unshared", action="store_true", help="each session evaluates its whole prompt")
    options = parser.parse_args()
    tasks = [task.model_copy(update={"num_samples": options.samples}) for task in read_tasks(options.tasks)]
    results, counters = await run(tasks, shared=not options.unshared)
    print(report(tasks, results, counters))


if __name__ == "__main__":
    asyncio.run(main())
