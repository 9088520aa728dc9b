"""Sessions through a fleet whose parts die, stop, freeze and lose their connections; what must hold after that."""

from __future__ import annotations

from collections import Counter

from e2e.exactly_once import assert_exactly_once
from fleet.fleet import Fleet
from polar.client import PolarClient
from polar.types import SessionResult, Stage
from service_bench import AGENT, agent_task
from waiting import until

SAMPLES = 5
LITTERING = f"sleep 300 & {AGENT}"
"""Leaves a process behind, which a node that is killed cannot end."""


async def assert_nothing_is_lost(fleet: Fleet, *, sessions: int, faults: int, seed: int = 0) -> None:
    """Nothing lost, doubled, stuck or left behind."""
    schedule = fleet.faults(faults, seed)
    async with fleet, fleet.client() as client:
        results = await _run(client, fleet, sessions, schedule)
        await _check(client, results, sessions)
        codes = await fleet.stop()
        assert fleet.happened and len(fleet.happened) == faults
        assert codes == [0] * len(codes), fleet.logs()
        assert fleet.left_running() == []
    assert any(result.attempt > 1 for result in results), "what was killed held sessions"


async def _run(client: PolarClient, fleet: Fleet, sessions: int, schedule: list) -> list[SessionResult]:
    task_ids = [f"task-{number}" for number in range(sessions // SAMPLES)]
    for task_id in task_ids:
        await client.submit(agent_task(LITTERING, task_id=task_id, num_samples=SAMPLES))
    left, every = list(schedule), max(1, (sessions - SAMPLES) // len(schedule))
    results: list[SessionResult] = []
    async for entry in client.results(task_ids=task_ids):
        results.append(entry.result)
        if left and len(results) % every == 0:
            _, happen = left.pop(0)
            await happen()
    for _, happen in left:
        await happen()
    return results


async def _check(client: PolarClient, results: list[SessionResult], sessions: int) -> None:
    assert len(results) == len({r.session_id for r in results}) == sessions
    assert Counter(r.stage for r in results) == {Stage.COMPLETED: sessions}, [r for r in results if r.failure][:3]
    assert {r.score.reward for r in results if r.score} == {1.0}
    page = await client.result_page(limit=sessions + 1)
    assert [entry.result for entry in page.results] == results, "nothing was recorded since, or in another order"
    statuses = await client.sessions(limit=sessions + 1)
    assert {(s.session_id, s.attempt) for s in statuses} == {(r.session_id, r.attempt) for r in results}
    for result in results:
        upload = await client.upload(result.session_id)
        assert upload.trajectory is not None
        assert_exactly_once(upload.calls, upload.trajectory)
        assert {call.call_id.split(".")[1] for call in upload.calls} == {str(result.attempt)}

    async def idle() -> bool:
        return not any(node.sessions for node in await client.nodes() if node.alive)

    await until(idle)
