"""Gateway nodes on a real Ray cluster of several raylets: machines that join and leave, and what Ray restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest
from ray_machines import RayMachines

from polar.types import SessionResult, Stage
from service_bench import ServiceBench, agent_task
from waiting import until

pytestmark = pytest.mark.check

TASKS, SAMPLES = 8, 5
SESSIONS = TASKS * SAMPLES


@pytest.fixture
def machines(bench: ServiceBench) -> Iterator[RayMachines]:
    made = RayMachines(bench)
    yield made
    made.close()


async def test_sessions_end_exactly_once_whatever_ray_loses(bench: ServiceBench, machines: RayMachines) -> None:
    await bench.start_server()
    machines.start_head()
    first, second, third = (machines.start_machine() for _ in range(3))
    folder = bench.folder / "on-ray"
    machines.polar("up", "--server", bench.address, "--resource", "polar=1", "--folder", str(folder))

    async def registered(number: int) -> None:
        async with bench.client() as client:
            await until(lambda: _alive(client, number), pause_s=0.2)

    async def kill_node() -> None:
        node = await asyncio.to_thread(machines.node_of, first)
        os.kill(node, signal.SIGKILL)
        await until(lambda: machines.node_of(first) != node, pause_s=0.2)

    async def kill_actor() -> None:
        actor = await asyncio.to_thread(machines.actor_of, second)
        os.kill(actor, signal.SIGKILL)
        await until(lambda: machines.actor_of(second) != actor, pause_s=0.2)

    async def lose_machine() -> None:
        machines.kill_raylet(third)

    async def join() -> None:
        machine = await asyncio.to_thread(machines.start_machine)
        await asyncio.to_thread(machines.node_of, machine)

    await registered(3)
    results = await _run(bench, {6: kill_node, 12: kill_actor, 18: lose_machine, 24: join})
    assert len(results) == len({result.session_id for result in results}) == SESSIONS
    assert {result.stage for result in results} == {Stage.COMPLETED}, [r for r in results if r.failure]
    assert {result.score.reward for result in results if result.score} == {1.0}
    assert any(result.attempt > 1 for result in results), "what was killed held sessions"

    await registered(3)
    working = await asyncio.to_thread(machines.working)
    assert {machine["address"] for machine in working} == {"127.0.0.3", "127.0.0.4", "127.0.0.6"}
    assert [machine["status"]["problem"] for machine in working] == ["", "", ""]
    machines.polar("down")
    await until(lambda: not [each for each in bench.ours() if " gateway " in each])
    assert bench.left_running() == []
    assert (bench.folder / "secrets/node-token").read_text() not in _texts(bench)


async def _alive(client: object, number: int) -> bool:
    nodes = await client.nodes()  # type: ignore[attr-defined]
    return sum(node.alive for node in nodes) == number


async def _run(bench: ServiceBench, events: dict[int, Callable[[], Awaitable[None]]]) -> list[SessionResult]:
    task_ids = [f"task-{number}" for number in range(TASKS)]
    results: list[SessionResult] = []
    async with bench.client() as client:
        for task_id in task_ids:
            await client.submit(agent_task(task_id=task_id, num_samples=SAMPLES))
        async for entry in client.results(task_ids=task_ids):
            results.append(entry.result)
            if event := events.get(len(results)):
                await event()
        page = await client.result_page(limit=SESSIONS + 1)
        assert [entry.result for entry in page.results] == results, "and nothing was recorded since"
    return results


def _texts(bench: ServiceBench) -> str:
    """Logs and command lines: where a secret must not stand."""
    return "\n".join([*bench.ours(), *(path.read_text() for path in bench.folder.rglob("*.log"))])
