"""The batch script, run by a real Slurm with two machines: stopped in mid-run, and continued by the next job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_machines import SlurmMachines

from polar.client import PolarClient
from polar.types import Stage
from service_bench import AGENT, ServiceBench, agent_task
from waiting import until

pytestmark = pytest.mark.check

QUICK, HELD = 6, 4


@pytest.fixture
def machines(bench: ServiceBench) -> Iterator[SlurmMachines]:
    made = SlurmMachines(bench)
    yield made
    made.close()


async def test_a_job_that_is_stopped_hands_back_and_the_next_one_ends_with_its_tasks(
    bench: ServiceBench, machines: SlurmMachines
) -> None:
    machines.start()
    go = bench.folder / "go"
    quick = agent_task(task_id="quick", num_samples=QUICK)
    held = agent_task(f"until [ -e {go} ]; do sleep 0.1; done; {AGENT}", task_id="held", num_samples=HELD)
    (bench.folder / "tasks.jsonl").write_text("".join(task.model_dump_json() + "\n" for task in (quick, held)))
    local = machines.folder / "local"
    local.mkdir()
    options = ("--machines", "2", "--host", "127.0.0.1", "--config", "polar.toml", "--local", str(local))
    job = machines.submit(*options)
    address = bench.folder / "polar-slurm" / f"address-{job}"
    await until(lambda: _there(address, machines, job), pause_s=0.2)
    bench.address = address.read_text()

    async with bench.client() as client:
        await until(lambda: _alive(client, 2), pause_s=0.2)
        await client.submit(quick)
        await until(lambda: _results(client, 1), pause_s=0.2)
        _kill_one_node()
        await until(lambda: machines.output(job).count("registered at") == 3, pause_s=0.2)
        assert "restarting it" in machines.output(job)
        await until(lambda: _results(client, QUICK), pause_s=0.2)
        await client.submit(held)
        await until(lambda: _running(client), pause_s=0.2)
    machines.answer("scancel", "--batch", "--signal=TERM", job)
    await until(lambda: machines.state(job).startswith("COMPLETED"), pause_s=0.2)
    assert machines.state(job) == "COMPLETED 0:0", machines.output(job)
    assert "is handed back" in machines.output(job)
    assert _left(bench, local) == []

    go.touch()
    job = machines.submit(*options, "--tasks", "tasks.jsonl")
    await until(lambda: not machines.state(job).startswith(("PENDING", "RUNNING", "COMPLETING")), pause_s=0.2)
    assert machines.state(job) == "COMPLETED 0:0", machines.output(job)
    assert _left(bench, local) == []

    stages, results = await _recorded(bench)
    assert stages == {Stage.COMPLETED: QUICK + HELD}
    assert results == QUICK + HELD, "each session has its result once"


def _there(address: Path, machines: SlurmMachines, job: str) -> bool:
    assert machines.state(job).startswith(("PENDING", "RUNNING")), machines.output(job)
    return address.exists() and bool(address.read_text())


async def _alive(client: PolarClient, number: int) -> bool:
    return sum(node.alive for node in await client.nodes()) == number


async def _results(client: PolarClient, number: int) -> bool:
    return len((await client.result_page(limit=100)).results) >= number


async def _running(client: PolarClient) -> bool:
    return any(status.stage is Stage.RUNNING for status in await client.sessions(limit=100))


def _kill_one_node() -> None:
    """Its supervisor starts another."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"gateway" in command and b"--run-id" in command and b"/slurm" in b" ".join(command):
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError("no gateway node runs")


def _left(bench: ServiceBench, local: Path) -> list[str]:
    mine = [each for each in bench.ours() if "munged" not in each and "slurm" not in each.split(" ")[0]]
    return [*mine, *bench.left_running(), *map(str, local.iterdir())]


async def _recorded(bench: ServiceBench) -> tuple[dict[Stage, int], int]:
    """What the database of both jobs' servers holds."""
    await bench.start_server("--database", f"sqlite:///{bench.folder}/polar-slurm/polar-server.db")
    async with bench.client() as client:
        results = (await client.result_page(limit=1000)).results
        stages: dict[Stage, int] = {}
        for status in await client.sessions(limit=1000):
            stages[status.stage] = stages.get(status.stage, 0) + 1
    return stages, len(results)
