"""What runs and services leave on disk: group and others can read nothing of it, with an open umask too."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Iterator

import pytest

from service_bench import AGENT, ServiceBench, agent_task, stopped

pytestmark = pytest.mark.check

LITTER = "mkdir -m 777 out && echo a > out/a && chmod 777 out/a && umask 0 && echo b > b"
TASK = agent_task(
    f"{AGENT} && {LITTER}", task_id="a", num_samples=2, keep={"artifacts": ["out", "b"], "patch": True}
)


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """All processes of a test inherit it."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable(bench: ServiceBench) -> list[str]:
    """Files and folders that group or others may use, of all that Polar's processes have written."""
    written = [path for path in bench.folder.iterdir() if path.suffix not in (".toml", ".json", ".log")]
    found = [path for root in written for path in (root, *root.rglob("*"))]
    assert found
    return [
        f"{stat.filemode(path.stat().st_mode)} {path}"
        for path in found
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


async def finished(bench: ServiceBench, *arguments: str) -> None:
    process = bench.start(*arguments)
    assert await asyncio.to_thread(process.wait, 90) == 0, bench.logs()


async def test_a_run(bench: ServiceBench) -> None:
    (bench.folder / "tasks.json").write_text(json.dumps([TASK.model_dump(mode="json")]))
    await finished(bench, "run", "tasks.json")
    runs = bench.folder / "polar-runs"
    names = {path.name for path in runs.rglob("*")}
    assert {"journal.db", "run.json", "tasks.jsonl", "traces.msgpack", "patch.diff", "b"} <= names
    (kept,) = runs.glob("*/sessions/a-0/artifacts/out/a")
    assert os.access(kept, os.X_OK), "the user can still run what the agent made"
    assert readable(bench) == []


async def test_a_run_with_a_service_of_its_own(bench: ServiceBench) -> None:
    (bench.folder / "tasks.json").write_text(json.dumps([TASK.model_dump(mode="json")]))
    await finished(bench, "up", "tasks.json")
    runs = bench.folder / "polar-runs"
    assert {"server.db", "journal.db", "logs", "nodes"} <= {path.name for path in runs.rglob("*")}
    assert readable(bench) == []


async def test_a_server_with_a_node(bench: ServiceBench) -> None:
    await bench.start_server()
    node = bench.start_node()
    async with bench.client() as client:
        await client.submit(TASK)
        results = [result async for result in client.results(task_ids=["a"])]
    assert len(results) == 2
    assert await stopped(node) == 0, bench.logs()
    left = {path.name for path in bench.folder.rglob("*")}
    assert {"node-token", "journal.db", "traces.msgpack"} <= left
    assert {"polar-server.db", "polar-server.db-wal", "polar-server.db-shm"} <= left, "the server still runs"
    assert readable(bench) == []


async def test_what_the_user_asks_for_follows_the_umask(bench: ServiceBench) -> None:
    (bench.folder / "tasks.json").write_text(json.dumps([TASK.model_dump(mode="json")]))
    await finished(bench, "run", "tasks.json")
    await finished(bench, "export", "--out", "data")
    await finished(bench, "view", "a-0", "--html", "page.html")
    shared = [path for path in (bench.folder / "data").rglob("*") if path.is_file()]
    assert shared and all(stat.S_IMODE(path.stat().st_mode) == 0o666 for path in shared)
    assert stat.S_IMODE((bench.folder / "page.html").stat().st_mode) == 0o666
