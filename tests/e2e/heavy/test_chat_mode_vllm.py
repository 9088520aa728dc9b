"""Chat mode as a user runs it: real pi, a real vLLM that renders and parses, and an audit of what came out."""

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
from real_run import calls_of, polar_run
from vllm_server import VllmServer, converted, installed

from polar.store.weights import default_weights

pytestmark = [pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

CHAT = (
    *("--chat-template", str(Path(__file__).parents[1] / "chatml.jinja")),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out"),
)
TASKS = """
[[tasks]]
task_id = "list"
instruction = "Run the command ls with the bash tool."
num_samples = 3
harness = "pi"
sampling = {{ seed = 5, max_tokens = 48 }}
budgets = {{ max_calls = 4 }}
builder = {{ name = "prefix_merging", options = {{ drift = "{drift}" }} }}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    environment = await asyncio.to_thread(installed)
    weights = await asyncio.to_thread(converted, environment, await default_weights())
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = await VllmServer.spawn(environment, weights, log, *CHAT, context_tokens=4096)
    yield running
    await running.stop()


@pytest.mark.parametrize("drift", ["fork", "heal"])
async def test_pi_runs_on_an_engine_that_renders(server: VllmServer, tmp_path: Path, drift: str) -> None:
    (tmp_path / "polar.toml").write_text(
        f'[engine]\nname = "vllm"\noptions = {{ url = "{server.url}" }}\n[model]\nmode = "chat"\n'
    )
    (tmp_path / "tasks.toml").write_text(TASKS.format(drift=drift))
    run = await asyncio.to_thread(polar_run, tmp_path, tmp_path / "tasks.toml")
    assert [session["stage"] for session in run["results"]] == ["COMPLETED"] * 3
    calls = await asyncio.to_thread(lambda: [c for s in run["results"] for c in calls_of(run, s["session_id"])])
    assert len(calls) >= 3 and all(call.completion_ids for call in calls)
    for call in calls:
        assert not (call.continues and call.drift), "a prompt goes on from its parent's tokens, or says why not"
        assert call.parent_id is None or call.continues or call.drift or call.break_reason
    audit = await asyncio.to_thread(audited, tmp_path)
    assert audit["ok"] and audit["scores"]["mean"] < 1e-3


def audited(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "audit", "--engine", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
