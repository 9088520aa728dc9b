"""`polar eval --server`: the sessions run at a server, and are kept here as a run with its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polar
from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.client import SyncPolarClient
from polar.trainers.evaluation import EvalReport
from polar.types import Stage
from waiting import HANG_S, blocked_until

TASKS = """
[defaults]
harness = { name = "shell", options = { command = "true" } }
num_samples = 2

[[tasks]]
task_id = "add"
instruction = "add"

[[tasks]]
task_id = "mul"
instruction = "multiply"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tasks.toml").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def served(node: FakeNode, count: int) -> threading.Thread:
    thread = threading.Thread(target=node.serve, args=(count,))
    thread.start()
    return thread


@pytest.mark.usefixtures("folder")
def test_a_set_is_evaluated_twice_at_one_server_and_kept_here(service: Service, node: FakeNode) -> None:
    """The ids are new each time; the report names the tasks of the set."""
    for _ in range(2):
        serving = served(node, 4)
        arguments = ["eval", "tasks.toml", "--server", service.url, "--json", "--solved-at", "0.5", "-k", "1,2"]
        result = CliRunner().invoke(app, arguments)
        serving.join()
        assert result.exit_code == 0, result.output
    report = EvalReport.model_validate(json.loads(result.stdout))
    (measured,) = report.variants
    assert (measured.variant.policy, measured.sessions, measured.solved) == ("server", 4, 2)
    assert [tally.task for tally in measured.tasks] == ["add", "mul"]
    run = polar.load_run(report.runs["server"])
    assert len(run) == 4 and len(run.traces) == 4 and all(len(session.calls) == 2 for session in run)
    assert run.record.finished is not None and (run.paths.root / "eval.json").exists()
    first, second = sorted(os.listdir("polar-runs"))
    compared = CliRunner().invoke(app, ["eval", "--compare", first, second, "--solved-at", "0.5", "--json"])
    differences = json.loads(compared.stdout)["differences"]
    assert [each["tasks"] for each in differences] == [2, 2], "tasks of the set, whatever their ids at the server"


def test_ctrl_c_cancels_the_tasks_at_the_server(folder: Path, service: Service, node: FakeNode) -> None:
    program = "from polar.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "eval", "tasks.toml", "--server", service.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        taken: list[str] = []
        blocked_until(lambda: bool(taken.extend(node.lease(wait_s=0.2)) or taken))
        node.finish(taken[0])
        process.send_signal(signal.SIGINT)
        for session_id in taken[1:]:
            blocked_until(lambda session_id=session_id: session_id in node.beat(session_id, Stage.RUNNING))
            node.finish(session_id, stage=Stage.CANCELLED, score=None)
        _, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, err.decode()
    with SyncPolarClient(service.url) as client:
        assert all(session.stage.final for session in client.sessions())
    (report,) = folder.glob("polar-runs/*/eval.json")
    assert EvalReport.model_validate_json(report.read_bytes()).variants[0].sessions == 4
