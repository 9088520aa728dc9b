"""How overview, lists, cursor and groups grow with the number of finished sessions, as ratios to a small database.

    python benchmarks/overview.py [--sessions 100000] [--database postgresql://...]

Times differ between machines; the ratio of a large database to a small one hardly does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, select, text

from polar.config import ServerConfig
from polar.server.overview import group_list, session_list
from polar.server.overview.snapshot import snapshot
from polar.server.records import groups, leases, nodes, results, tasks
from polar.server.records.sessions import listing, rows_of
from polar.server.records.tables import sessions
from polar.server.state import Change, State
from polar.server.status.reading import read
from polar.types import (
    PROTOCOL,
    Failure,
    NodeAbilities,
    Registration,
    Score,
    Selection,
    SessionFilter,
    SessionResult,
    Stage,
    TaskRequest,
)
from polar.types.trace import TrajectoryStatistics

SMALL = 1000
SAMPLES = 100
"""Of each task."""
QUEUED = 200
RUNS = 30
FILTERS: dict[str, dict[str, Any]] = {
    "newest": {},
    "open": {"open": True},
    "stage": {"stage": "TIMED_OUT"},
    "harness": {"harness": "rare"},
    "task": {"task_id": "task-3"},
    "group": {"group_id": "task-3"},
    "failed by the agent": {"failed_by": "agent"},
    "failed, rare": {"failed_by": "infrastructure"},
    "failure type": {"failure_type": "Rare"},
    "untrainable": {"untrainable": "stale"},
    "two filters, one rare": {"stage": "COMPLETED", "harness": "rare"},
    "reward, none found": {"reward_at_least": 2.0},
    "text, none found": {"text": "nowhere"},
}


def _result(row: Any, chance: random.Random) -> SessionResult:
    draw = chance.random()
    failure = None
    if draw < 0.1:
        failure = Failure(where="harness", type="ExitCode", message="1", agent=True)
    elif draw < 0.1001:
        failure = Failure(where="engine", type="Rare", message="away")
    return SessionResult(
        session_id=row.session_id,
        task_id=row.task_id,
        index=row.index,
        attempt=row.attempt,
        stage=Stage.TIMED_OUT if draw > 0.999 else Stage.COMPLETED,
        score=Score(reward=float(chance.random() < 0.5)),
        failure=failure,
        statistics=TrajectoryStatistics(
            calls=8, traces=2, sampled_tokens=900, append_only_pairs=7, merged_pairs=6
        ),
        policy_updates=chance.randrange(4),
        stale=draw > 0.9995,
        stage_s={"RUNNING": 60 * chance.random()},
    )


def _end_all(change: Change, node_id: str, task_id: str, chance: random.Random) -> None:
    leases.lease(change, node_id, SAMPLES)
    rows = rows_of(change.connection, select(sessions).where(sessions.c.task_id == task_id))
    results.finish(change, [(row, _result(row, chance)) for row in rows], node_id)


def _able(slots: int) -> Registration:
    abilities = NodeAbilities(protocol=PROTOCOL, runtimes=("local",), harnesses=("one", "rare", "pi"))
    return Registration(name="one", slots=slots, abilities=abilities)


async def _fill(state: State, count: int) -> None:
    chance = random.Random(1)
    node = (await state.change(nodes.register, _able(SAMPLES))).node_id
    for number in range(count // SAMPLES):
        harness = "rare" if number == 1 else "one"
        task = {"task_id": f"task-{number}", "instruction": "x" * 500, "num_samples": SAMPLES, "harness": harness}
        await state.change(tasks.submit, TaskRequest.model_validate(task))
        await state.change(_end_all, node, f"task-{number}", chance)
    waiting = {"task_id": "waiting", "instruction": "x", "num_samples": QUEUED}
    await state.change(tasks.submit, TaskRequest.model_validate(waiting))


async def _median_ms(state: State, work: Callable[[Connection], object]) -> float:
    times: list[float] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        await state.read(work)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


async def _measure(database: str, count: int) -> dict[str, float]:
    state = await State.open(ServerConfig(database=database), time.time)
    try:
        start = time.perf_counter()
        await _fill(state, count)
        print(f"{count} finished sessions made in {time.perf_counter() - start:.1f} s")
        found = {
            "overview": await _median_ms(state, lambda c: snapshot(c, time.time(), time.time() - 60)),
            "scrape of metrics": await _median_ms(state, lambda c: read(c, time.time(), time.time() - 60)),
            "groups": await _median_ms(state, lambda c: group_list.page(c, None, 50)),
        }
        middle = count // 2
        for name, look in {
            "cursor, from the start": lambda c: results.rows_after(c, 0, 100, results.ResultFilter()),
            "cursor, in the middle": lambda c: results.rows_after(c, middle, 100, results.ResultFilter()),
            "cursor, at the end": lambda c: results.rows_after(c, count - 100, 100, results.ResultFilter()),
            "cursor of a task": lambda c: results.rows_after(c, 0, 100, results.ResultFilter(task_id="task-3")),
            "selected tasks": lambda c: results.selected(c, Selection(task_ids=("task-3", "task-5"))),
            "whole groups": lambda c: groups.done_after(c, middle, 4, None),
            "a selected group": lambda c: groups.done_after(c, 0, 4, ["task-3"]),
            "status of a group": lambda c: groups.status(c, "task-3"),
            "newest tasks": lambda c: tasks.newest(c, 50),
            "sessions, the first": lambda c: listing(c, None, None, 100),
            "sessions in a rare stage": lambda c: listing(c, None, Stage.TIMED_OUT, 1),
            "sessions that wait": lambda c: listing(c, None, Stage.QUEUED, 100),
        }.items():
            found[name] = await _median_ms(state, look)
        for name, fields in FILTERS.items():
            wanted = SessionFilter.model_validate(fields)
            found[name] = await _median_ms(state, lambda c, w=wanted: session_list.page(c, w, None, 50))
        return found
    finally:
        await state.close()


def _emptied(address: str) -> str:
    """A schema of its own in a PostgreSQL database."""
    engine = create_engine(address.replace("postgresql://", "postgresql+psycopg://"))
    name = f"overview_{time.time_ns()}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{address}{'&' if '?' in address else '?'}options=-csearch_path%3D{name}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--database", help="a PostgreSQL address; default: SQLite in a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        both: list[dict[str, float]] = []
        for count in (SMALL, given.sessions):
            path = Path(folder) / f"{count}.db"
            both.append(await _measure(_emptied(given.database) if given.database else f"sqlite:///{path}", count))
    small, large = both
    print(f"\n{'':24}{SMALL:>9}{given.sessions:>11}{'ratio':>8}")
    for name in small:
        print(f"{name:24}{small[name]:7.1f}ms{large[name]:9.1f}ms{large[name] / small[name]:8.1f}")


if __name__ == "__main__":
    asyncio.run(main())
