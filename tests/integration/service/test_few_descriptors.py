"""A node that runs out of file descriptors: sessions are handed back and run again, none of them fails for it."""

from __future__ import annotations

import re
import resource
import subprocess

import pytest

from polar.types import ResultEntry, Stage
from service_bench import AGENT, CONFIG, POLAR, ServiceBench, agent_task
from waiting import hang_limit, until

pytestmark = pytest.mark.check

DESCRIPTORS = 130
SESSIONS = 60
"""So many that those which run and wait hold more descriptors than there are, however slowly they start."""


def start_narrow_node(bench: ServiceBench) -> subprocess.Popen[bytes]:
    """A node that may open few files, and whose config lets it run more sessions than these are enough for."""
    limit = f'ulimit -n {DESCRIPTORS} && exec "$@"'
    with (bench.folder / f"{len(bench.processes)}-gateway.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", limit, "bash", *POLAR, "gateway", "--server", bench.address],
            cwd=bench.folder,
            env=bench.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    bench.processes.append(process)
    return process


async def test_a_node_out_of_descriptors_fails_no_session(bench: ServiceBench) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > DESCRIPTORS
    pools = "init = 20\nready = 20\nrunning = 50\npostrun = 10\n"
    config = re.sub(
        r"(?s)\[pools\].*?\[server\]", f"[pools]\n{pools}[node]\nprobe_pause_s = 0.2\n[server]", CONFIG
    )
    (bench.folder / "polar.toml").write_text(config)
    await bench.start_server()
    node = start_narrow_node(bench)
    await until(lambda: bench.has_registered(node))
    entries: list[ResultEntry] = []
    async with bench.client() as client, hang_limit():
        # No session ends before there are more than there are descriptors for, however busy the machine is.
        go_on = bench.folder / "go-on"
        wait = f"until [ -e {go_on} ]; do sleep 0.5; done"
        await client.submit(agent_task(f"{wait}; {AGENT}", task_id="t", num_samples=SESSIONS))
        await until(lambda: "descriptors" in bench.logs())
        go_on.touch()
        async for entry in client.results(task_ids=["t"]):
            entries.append(entry)
    results = [entry.result for entry in entries]
    assert len(results) == SESSIONS
    failed = [(r.session_id, r.failure, r.attempts) for r in results if r.stage is not Stage.COMPLETED]
    assert failed == [], bench.logs()
    reasons = {attempt.where for result in results for attempt in result.attempts}
    assert "descriptors" in reasons, "the node was to run out of them"
