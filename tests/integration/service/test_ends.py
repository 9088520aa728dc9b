"""How processes end when it is hard to: a server that hangs, an impatient user."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator

import pytest

from service_bench import AGENT, ServiceBench, agent_task
from waiting import HANG_S, until

pytestmark = pytest.mark.check


class HangingServer:
    """In the place of a server: accepts connections, and answers nothing."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self.connections: list[socket.socket] = []
        self._task: asyncio.Task[None] | None = None

    def take_over(self) -> None:
        listener = socket.create_server(self._address)
        listener.setblocking(False)
        self._task = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                self.connections.append(connection)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        for connection in self.connections:
            connection.close()


@pytest.fixture
async def hanging(bench: ServiceBench) -> AsyncIterator[HangingServer]:
    await bench.start_server()
    made = HangingServer(bench.address)
    yield made
    await made.close()


async def test_a_node_ends_at_sigterm_although_its_server_hangs(
    bench: ServiceBench, hanging: HangingServer
) -> None:
    """The upload of a finished session is under way, another session runs, and a lease is asked for."""
    here = bench.folder / "here"
    node = bench.start_node()
    await until(lambda: bench.has_registered(node))
    async with bench.client() as client:
        await client.submit(agent_task(f"{AGENT}; touch {here}; sleep 600", task_id="runs"))
        await until(here.exists)
        done = bench.folder / "done"
        waits = f"{AGENT}; touch {done}; while [ ! -e {bench.folder}/go ]; do sleep 0.05; done"
        await client.submit(agent_task(waits, task_id="ends"))
        await until(done.exists)
    server = bench.processes[0]
    server.kill()
    server.wait()
    hanging.take_over()
    (bench.folder / "go").touch()
    await until(lambda: hanging.connections)
    node.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait, HANG_S) == 0, bench.logs()
    assert bench.left_running() == []


async def test_ctrl_c_again_and_again_leaves_nothing_running(bench: ServiceBench) -> None:
    here = bench.folder / "here"
    stubborn = f"trap '' TERM INT HUP; {AGENT}; touch {here}; while :; do sleep 1; done"
    tasks = [agent_task(stubborn, task_id="t", num_samples=2).model_dump(mode="json")]
    (bench.folder / "tasks.json").write_text(json.dumps(tasks))
    run = bench.start("run", "tasks.json")
    await until(here.exists)
    # The last of them may reach a Python that has done its work and is about to exit.
    assert await _interrupted(run) in (130, -signal.SIGINT), bench.logs()
    assert "Traceback" not in bench.logs()
    assert bench.left_running() == [] and bench.ours() == []
    assert list((bench.folder / "polar-runs").glob("*/sessions/*/place")) == []


async def _interrupted(process: subprocess.Popen[bytes]) -> int:
    """Its exit code, after as many Ctrl-C as it took."""

    def ended() -> bool:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        return process.poll() is not None

    await until(ended, pause_s=0.02)
    return process.wait()
