"""A service that a user starts for tasks of their own takes the modules that these name; others do not."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from polar.client import ServerError
from service_bench import ServiceBench, agent_task, stopped
from waiting import until

GRADER = "def half(evidence):\n    return 0.5\n"


@pytest.mark.check
async def test_up_with_tasks_runs_the_graders_that_they_name(bench: ServiceBench) -> None:
    (bench.folder / "my_grader.py").write_text(GRADER)
    task = agent_task(task_id="t", evaluator={"name": "my_grader:half"}).model_dump(mode="json")
    (bench.folder / "tasks.json").write_text(json.dumps([task]))
    up = bench.start("up", "tasks.json", "--json")
    assert await asyncio.to_thread(up.wait, 90) == 0, bench.logs()
    (log,) = bench.folder.glob("*.log")
    (result,) = json.loads(log.read_text())["results"]
    assert result["score"]["reward"] == 0.5


async def test_up_without_tasks_refuses_them(bench: ServiceBench) -> None:
    (bench.folder / "my_grader.py").write_text(GRADER)
    up = bench.start("up", "--port", "0")
    await until(lambda: "Ctrl-C stops everything" in bench.logs())
    bench.address = bench.logs().partition("rollout server  ")[2].split()[0]
    async with bench.client() as client:
        with pytest.raises(ServerError, match=r'add "my_grader" to server\.allowed_modules'):
            await client.submit(agent_task(evaluator={"name": "my_grader:half"}))
    assert await stopped(up, signal.SIGINT) == 0
