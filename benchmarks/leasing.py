"""How long a lease takes with many queued sessions and many different needs, as ratios to a short queue.

    python benchmarks/leasing.py [--database postgresql://...] [--queued 100 1000 10000]

Each row is the fastest of some leases of one session that is handed back at once, so that the queue keeps its
length: on a busy machine the fastest is the one that was not disturbed.
Times differ between machines; the ratio of a long queue to a short one hardly does.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from polar.config import ServerConfig
from polar.server.records import leases, nodes, tasks
from polar.server.records.tables import METADATA
from polar.server.state import Change, State
from polar.types import PROTOCOL, HandBack, NodeAbilities, Registration, TaskRequest

RUNS = 40
NEEDS = 200
"""Different needs, as of a task set with an image for each row."""
SHAPES = (
    "one task",
    "a task each, one need",
    "a task each, node can run 100 of 200 needs",
    "a task each, node can run 1 of 200 needs",
)


def _tasks(shape: str, queued: int) -> list[TaskRequest]:
    shell = {"name": "shell", "options": {"command": "true"}}
    common: dict[str, Any] = {"instruction": "x" * 500, "harness": shell}
    if shape == "one task":
        return [TaskRequest.model_validate({**common, "task_id": "all", "num_samples": queued})]
    needs = [{} if "one need" in shape else {"labels": [f"label-{n % NEEDS}"]} for n in range(queued)]
    return [
        TaskRequest.model_validate({**common, "task_id": f"task-{n}", "needs": needs[n]}) for n in range(queued)
    ]


def _abilities(shape: str) -> NodeAbilities:
    """With every second label, as many as a node may have; or with one that is late in the shortest queue."""
    wanted = range(99, 100) if "run 1 of" in shape else range(0, NEEDS, 2)
    return NodeAbilities(protocol=PROTOCOL, runtimes=("local",), labels=tuple(f"label-{n}" for n in wanted))


def _lease_and_return(change: Change, node_id: str) -> float:
    began = time.perf_counter()
    [lease] = leases.lease(change, node_id, 1).leases
    took = time.perf_counter() - began
    given = HandBack(session_id=lease.session.session_id, attempt=lease.session.attempt)
    leases.hand_back(change, node_id, given)
    return took


def _submit_all(change: Change, made: list[TaskRequest]) -> None:
    for task in made:
        tasks.submit(change, task)


async def _measure(database: str, shape: str, queued: int) -> float:
    state = await State.open(ServerConfig(database=database), time.time)
    try:
        await state.change(_submit_all, _tasks(shape, queued))
        registration = Registration(name="one", slots=8, abilities=_abilities(shape))
        node = (await state.change(nodes.register, registration)).node_id
        took = [await state.change(_lease_and_return, node) for _ in range(RUNS)]
        return 1000 * min(took)
    finally:
        await state.close()


def _emptied(address: str | None, folder: str, name: str) -> str:
    if address is None:
        return f"sqlite:///{Path(folder, name)}.db"
    engine = create_engine(address)
    METADATA.drop_all(engine)
    engine.dispose()
    return address


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", help="a PostgreSQL database, which is emptied; default: SQLite")
    parser.add_argument("--queued", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number, shape in enumerate(SHAPES):
            first = 0.0
            for queued in arguments.queued:
                database = _emptied(arguments.database, folder, f"{number}-{queued}")
                found = await _measure(database, shape, queued)
                first = first or found
                print(f"{shape:<43} {queued:>6} queued  {found:7.2f} ms  x {found / first:.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
