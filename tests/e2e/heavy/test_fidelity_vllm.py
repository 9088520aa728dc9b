"""Captured logprobs are a real model's, in the context in which the tokens stand in the merged trace.

Rows of docs/fidelity.md as its script makes them, and the same as a user would type it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from real_run import polar_run
from vllm_server import VllmServer, converted, installed

from polar.store.weights import default_weights

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[3]
CONTEXT_TOKENS = 4096
TASKS = """
[[tasks]]
task_id = "word"
num_samples = 3
instruction = "Write the word hello into the file answer.txt."
harness = { name = "pi", options = { tools = ["bash"] } }
sampling = { max_tokens = 96 }
budgets = { run_s = 200, max_calls = 3 }
"""


def test_a_scripted_loop_is_scored_alike_when_it_is_sampled_and_when_it_is_merged(tmp_path: Path) -> None:
    cells = ["pi/qwen3-scored", "codex/qwen3-scored"]
    chosen = [flag for cell in cells for flag in ("--cell", cell)]
    script = [sys.executable, ROOT / "benchmarks" / "fidelity.py", *chosen, "--rows", tmp_path / "rows.json"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1500, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(row["cell"] for row in rows) == sorted(cells)
    for row in rows:
        assert (row["kinds"], row["traces"], row["merged_pairs"]) == ({"agent": 5}, 1, 4)
        assert (row["findings"], row["breaks"]) == ([], {})
        assert row["scored_tokens"] > 300
        assert row["mean_gap"] < 1e-3 and row["max_gap"] < 0.05
        assert row["altered_gap"] > 0.05, "a single other token in the context is seen"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[VllmServer]:
    environment = await asyncio.to_thread(installed)
    weights = await asyncio.to_thread(converted, environment, await default_weights())
    flags = ("--enable-scale-out",)
    running = await VllmServer.spawn(
        environment, weights, tmp_path / "vllm.log", *flags, context_tokens=CONTEXT_TOKENS
    )
    yield running
    await running.stop()


async def test_a_free_model_on_vllm_is_audited_by_the_engine_that_sampled(
    server: VllmServer, tmp_path: Path
) -> None:
    (tmp_path / "tasks.toml").write_text(TASKS)
    config = tmp_path / "polar.toml"
    config.write_text(f'[engine]\nname = "vllm"\noptions = {{ url = "{server.url}" }}\n')
    run = await asyncio.to_thread(polar_run, tmp_path, tmp_path / "tasks.toml", "--config", str(config))
    report = await asyncio.to_thread(audited, run)
    assert (report["ok"], report["proven"]) == (True, 3)
    assert report["scores"]["tokens"] == run["trainable_tokens"] > 30
    assert report["scores"]["mean"] < 1e-3


def audited(run: dict[str, Any]) -> dict[str, Any]:
    """What `polar audit RUN --engine` finds."""
    root: Path = run["root"]
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "--runs-dir", str(root.parent)]
    command += ["audit", root.name, "--engine", "--positions", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)
