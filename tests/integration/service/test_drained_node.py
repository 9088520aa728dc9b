"""`polar gateway --drain` as a process: what SIGTERM does once and twice, and a single node that is restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from polar.child_processes import stop_requested
from polar.types import SessionStatus, Stage
from service_bench import AGENT, ServiceBench, agent_task, stopped
from waiting import HANG_S, until

pytestmark = pytest.mark.check


async def running(bench: ServiceBench) -> tuple[Path, SessionStatus]:
    """A session that runs until the file is there."""
    here, go = bench.folder / "here", bench.folder / "go"
    async with bench.client() as client:
        command = f"touch {here}; until [ -e {go} ]; do sleep 0.1; done; {AGENT}"
        await client.submit(agent_task(command, task_id="t"))
        await until(here.exists)
        return go, await client.session("t-0")


async def test_a_session_ends_before_its_node(bench: ServiceBench) -> None:
    await bench.start_server()
    node = bench.start_node("--drain", "10000")
    go, _ = await running(bench)
    node.send_signal(signal.SIGTERM)
    await until(lambda: "no more leases" in bench.logs())
    go.touch()
    assert await asyncio.to_thread(node.wait, HANG_S) == 0
    async with bench.client() as client:
        status = await client.session("t-0")
        assert (status.stage, status.attempt) == (Stage.COMPLETED, 1)
        assert await client.nodes() == []


async def test_a_second_sigterm_hands_it_back(bench: ServiceBench) -> None:
    await bench.start_server()
    node = bench.start_node("--drain", "10000")
    await running(bench)
    node.send_signal(signal.SIGTERM)
    await until(lambda: "no more leases" in bench.logs())
    assert await stopped(node) == 0
    async with bench.client() as client:
        status = await client.session("t-0")
    assert (status.stage, status.attempt) == (Stage.QUEUED, 2)
    assert bench.left_running() == []


async def test_a_single_node_is_restarted_on_request(bench: ServiceBench) -> None:
    await bench.start_server()
    supervisor = bench.start_node("--restart")
    async with bench.client() as client:
        await until(client.nodes, pause_s=0.1)
        [child] = (
            int(pid) for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        )
        os.kill(child, signal.SIGKILL)
        await until(lambda: bench.logs().count("registered at") == 2, pause_s=0.1)
    assert await stopped(supervisor) == 0
    assert [each for each in bench.ours() if " gateway " in each] == []


async def test_the_first_signal_stops_and_the_second_hurries() -> None:
    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    stop = stop_requested(hurry)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(stop.is_set)
        assert not hurry.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await until(hurry.is_set)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@pytest.mark.parametrize("value", ["-1", "soon"])
async def test_a_drain_is_a_time(bench: ServiceBench, value: str) -> None:
    node = bench.start_node("--drain", value)
    assert await asyncio.to_thread(node.wait, HANG_S) == 2
