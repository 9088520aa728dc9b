"""`kill -9` of `polar run` while the agent works and the evaluator's own runtime waits: nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from polar import registry
from polar.runtimes.host.processes import PROC, process_ids
from polar.runtimes.images.catalog import BaseImage, find
from polar.runtimes.images.engine import engine_images
from polar.store.paths import list_runs
from scripted_project import write_project
from skips import skip_without_runtime
from waiting import HANG_S, blocked_until

MAIN = "from polar.cli.app import main; main()"
IMAGE = "polar-base"
pytestmark = pytest.mark.check


@pytest.fixture(params=["bubblewrap", "docker"])
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    skip_without_runtime(name, asyncio.run(registry.find("runtime", name).lacking()))
    image = find(IMAGE)
    if image is None or (name == "docker" and not asyncio.run(_in_engine(image))):
        pytest.skip(f"there is no image {IMAGE}; `make image` builds it")
    return name


async def _in_engine(image: BaseImage) -> bool:
    async with engine_images() as engine:
        return engine is not None and await engine.holds(image)


@pytest.fixture
def agent_word(tmp_path: Path, runtime: str) -> str:
    """A project of one task. Its agent never ends, and only its processes have this word on their command line."""
    word = f"4{secrets.randbelow(10**8):08}.5"
    write_project(tmp_path)
    task = {
        "task_id": "say",
        "instruction": "x",
        "runtime": {"name": runtime, "options": {"image": IMAGE, "limits": {"memory_bytes": "256MiB"}}},
        "harness": {"name": "shell", "options": {"command": f"(setsid sleep {word} &); sleep {word}"}},
        "evaluator": {"name": "test_on_output", "options": {"command": "true"}},
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    return word


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def agents(word: str) -> list[int]:
    found: list[int] = []
    for pid in process_ids():
        try:
            words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", word.encode()]:
            found.append(pid)
    return found


def places(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "polar-runs").glob("*/sessions/*/*place"))


def test_the_next_gc_leaves_nothing_of_it(tmp_path: Path, agent_word: str) -> None:
    run = command(tmp_path, "run", "tasks.jsonl")
    try:
        blocked_until(lambda: run.poll() is not None or len(agents(agent_word)) == 2)
        blocked_until(lambda: run.poll() is not None or places(tmp_path) == ["evaluator-place", "place"])
        assert run.poll() is None
    finally:
        run.kill()
        run.communicate(timeout=HANG_S)
    [paths] = list_runs(tmp_path / "polar-runs")
    assert state_of(tmp_path) == "killed"

    pruned = command(tmp_path, "gc", "--yes", "--unused-days", "10000")
    pruned.communicate(timeout=HANG_S)

    assert pruned.returncode == 0
    assert agents(agent_word) == [] and places(tmp_path) == [] and cgroups_of(run.pid) == []
    assert not paths.owner.exists()


def state_of(folder: Path) -> str:
    output, _ = command(folder, "ls", "--json").communicate(timeout=HANG_S)
    [row] = json.loads(output)["runs"]
    return row["state"]


def cgroups_of(pid: int) -> list[Path]:
    """Those that the node of this process made."""
    return list(Path("/sys/fs/cgroup").glob(f"**/polar/*-{pid}.*"))
