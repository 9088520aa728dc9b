"""Server and nodes killed on the way, again and again: every session still gets exactly one result."""

from __future__ import annotations

import signal
import subprocess
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from polar.types import SessionResult, SessionStatus, Stage
from service_bench import AGENT, ServiceBench, agent_task, stopped
from waiting import until

TASKS, SAMPLES = 12, 5
SESSIONS = TASKS * SAMPLES
LITTERING = f"sleep 300 & {AGENT}"
"""Leaves a process behind, which a node that is killed cannot end."""


class Receiver:
    """Takes callbacks. Of every fifth key the first delivery is taken, but not acknowledged."""

    def __init__(self) -> None:
        self.deliveries: defaultdict[str, list[bytes]] = defaultdict(list)
        app = web.Application()
        app.router.add_post("/results", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> Receiver:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/results"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body, key = await request.read(), request.headers["Idempotency-Key"]
        self.deliveries[key].append(body)
        return web.Response(status=503 if key in self.unacknowledged() else 204)

    def unacknowledged(self) -> list[str]:
        return [key for key in list(self.deliveries)[::5] if len(self.deliveries[key]) == 1]


class Chaos:
    """What happens when so many results are in."""

    def __init__(self, bench: ServiceBench, server: subprocess.Popen[bytes]) -> None:
        self.bench = bench
        self.server = server
        self.nodes = [bench.start_node() for _ in range(3)]
        self.schedule: dict[int, Callable[[], Awaitable[None]]] = {
            6: self._kill_server,
            14: lambda: self._kill_node(0),
            22: self._kill_server,
            30: lambda: self._kill_node(1),
            31: self._kill_server,
            46: lambda: self._kill_node(0),
        }

    async def at(self, results: int) -> None:
        if results in self.schedule:
            await self.schedule[results]()

    async def _kill_server(self) -> None:
        await stopped(self.server, signal.SIGKILL)
        self.server = await self.bench.start_server()

    async def _kill_node(self, number: int) -> None:
        await stopped(self.nodes[number], signal.SIGKILL)
        self.nodes[number] = self.bench.start_node()


@pytest.mark.check
async def test_every_session_gets_exactly_one_result_whatever_dies(bench: ServiceBench) -> None:
    async with Receiver() as receiver:
        chaos = Chaos(bench, await bench.start_server())
        results, statuses = await _run(bench, chaos, receiver)
        await _all_delivered(receiver)
        await until(lambda: all(map(bench.has_registered, chaos.nodes)))
        codes = [await stopped(process) for process in (*chaos.nodes, chaos.server)]

    assert codes == [0, 0, 0, 0], bench.logs()
    assert len(results) == len({r.session_id for r in results}) == SESSIONS
    assert {(r.session_id, r.attempt) for r in results} == {(s.session_id, s.attempt) for s in statuses}
    assert {r.stage for r in results} == {Stage.COMPLETED}, [r for r in results if r.failure]
    assert {r.score.reward for r in results if r.score} == {1.0}
    assert any(r.attempt > 1 for r in results), "the nodes that were killed held sessions"

    assert receiver.deliveries.keys() == {f"{r.session_id}:{r.attempt}" for r in results}
    assert all(len(set(bodies)) == 1 for bodies in receiver.deliveries.values()), "a repetition is the same"
    told = [SessionResult.model_validate_json(bodies[0]) for bodies in receiver.deliveries.values()]
    assert {r.session_id: r for r in told} == {r.session_id: r for r in results}
    assert bench.left_running() == []


async def _run(
    bench: ServiceBench, chaos: Chaos, receiver: Receiver
) -> tuple[list[SessionResult], list[SessionStatus]]:
    async with bench.client() as client:
        task_ids = [f"task-{number}" for number in range(TASKS)]
        for task_id in task_ids:
            task = agent_task(LITTERING, task_id=task_id, num_samples=SAMPLES, callback_url=receiver.url)
            await client.submit(task)
        results: list[SessionResult] = []
        async for entry in client.results(task_ids=task_ids):
            results.append(entry.result)
            await chaos.at(len(results))
        for result in results:
            trajectory = await client.trajectory(result.session_id)
            assert sum(sum(trace.loss_mask) for trace in trajectory.traces) > 0
            upload = await client.upload(result.session_id)
            assert len(upload.calls) == 2 and upload.trajectory == trajectory
            assert {call.call_id.split(".")[1] for call in upload.calls} == {str(result.attempt)}
        page = await client.result_page(limit=SESSIONS + 1)
        assert [entry.result for entry in page.results] == results, "and nothing was recorded since"
        return results, await client.sessions(limit=SESSIONS + 1)


async def _all_delivered(receiver: Receiver) -> None:
    await until(lambda: len(receiver.deliveries) == SESSIONS and not receiver.unacknowledged())
