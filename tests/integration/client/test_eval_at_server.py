"""`polar eval --server`: the sessions run at a server, and are kept here as a run with its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polar
from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.cli.runs import eval_server
from polar.client import Retry, SyncPolarClient
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
    thread = threading.Thread(target=node.serve, args=(count,), daemon=True)
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


def compared(folder: Path) -> dict[str, Any]:
    """What `--compare` says of the only run."""
    (run_id,) = os.listdir(folder / "polar-runs")
    result = CliRunner().invoke(app, ["eval", "--compare", f"server={run_id}", "--json", "-k", "1"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def solved_of(report: dict[str, Any]) -> tuple[int, int, float, dict[str, int]]:
    """Sessions, those that are solved, pass@1, and what has not ended."""
    (measured,) = report["variants"]
    rate = measured["rates"][0]["pass_at"]["value"]
    return measured["sessions"], measured["solved"], rate, report.get("not_ended", {})


@contextmanager
def evaluating(folder: Path, service: Service) -> Generator[subprocess.Popen[str]]:
    """`polar eval` as a process of its own, whose stderr is in a file."""
    program = "from polar.cli.app import main; main()"
    arguments = ["eval", "tasks.toml", "--server", service.url, "--json", "-k", "1"]
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_lease(node: FakeNode) -> str:
    taken: list[str] = []
    blocked_until(lambda: bool(taken.extend(node.lease(wait_s=0.2)) or taken))
    (session_id,) = taken
    return session_id


def test_ctrl_c_cancels_the_tasks_at_the_server(folder: Path, service: Service, node: FakeNode) -> None:
    """One session is solved, one runs and two wait: what Ctrl-C cancels is no failure of the policy."""
    with evaluating(folder, service) as process:
        node.finish(first_lease(node))
        running = first_lease(node)
        process.send_signal(signal.SIGINT)
        blocked_until(lambda: running in node.beat(running, Stage.RUNNING))
        node.finish(running, stage=Stage.CANCELLED, score=None)
        out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, (folder / "stderr").read_text()
    with SyncPolarClient(service.url) as client:
        assert all(session.stage.final for session in client.sessions())
    assert solved_of(json.loads(out)) == (1, 1, 1.0, {"server": 3})
    assert solved_of(compared(folder)) == (1, 1, 1.0, {"server": 3})
    assert len(polar.load_run().results) == 4, "what was captured of the others is kept"


def test_a_session_that_another_client_cancels_counts(folder: Path, service: Service, node: FakeNode) -> None:
    def serve() -> None:
        for _ in range(3):
            node.finish(first_lease(node))
        with SyncPolarClient(service.url) as client:
            open_sessions = [session for session in client.sessions() if not session.stage.final]
            client.cancel_session(open_sessions[0].session_id)

    serving = threading.Thread(target=serve)
    serving.start()
    result = CliRunner().invoke(app, ["eval", "tasks.toml", "--server", service.url, "--json", "-k", "1"])
    serving.join()
    assert result.exit_code == 0, result.output
    assert solved_of(json.loads(result.stdout)) == (4, 3, 0.75, {})
    assert solved_of(compared(folder)) == (4, 3, 0.75, {})


def test_a_server_that_goes_away_takes_no_result_along(
    folder: Path, service: Service, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_server, "PATIENT", Retry(total_s=4))
    monkeypatch.setattr(eval_server, "BRIEF", Retry(total_s=0))

    def serve() -> None:
        for _ in range(2):
            node.finish(first_lease(node))
        blocked_until(lambda: len(list(folder.glob("polar-runs/*/sessions/*/traces.msgpack"))) == 2)
        service.stop()

    serving = threading.Thread(target=serve)
    serving.start()
    result = CliRunner().invoke(app, ["eval", "tasks.toml", "--server", service.url, "-k", "1"])
    serving.join()
    assert result.exit_code == 2, result.output
    assert "policy server: 2 sessions have not ended and are in no rate" in result.stdout
    assert "does not answer (Connection refused); trying again" in result.stderr
    assert "2 sessions have no result here and may still run at the server, of the tasks mul." in result.stderr
    assert f"`polar ls TASK --server {service.url}`" in result.stderr
    run = polar.load_run()
    assert len(run.results) == 2 and len(run.traces) == 2 and run.record.interrupted
    assert solved_of(compared(folder)) == (2, 2, 1.0, {"server": 2})


def test_ctrl_c_while_the_server_is_away_names_what_may_still_run(
    folder: Path, service: Service, node: FakeNode
) -> None:
    with evaluating(folder, service) as process:
        node.finish(first_lease(node))
        blocked_until(lambda: list(folder.glob("polar-runs/*/sessions/*/traces.msgpack")))
        service.stop()
        blocked_until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), pause_s=2)
        out, _ = process.communicate(timeout=HANG_S)
    errors = (folder / "stderr").read_text()
    assert process.returncode == 130, errors
    assert solved_of(json.loads(out)) == (1, 1, 1.0, {"server": 3})
    assert "3 sessions have no result here and may still run at the server" in errors and "polar cancel" in errors


def test_what_serves_a_trainer_does_not_distort_an_evaluation(
    folder: Path, service: Service, node: FakeNode
) -> None:
    """A group that has enough would cancel what is left, which then counts as not solved."""
    (folder / "tasks.toml").write_text(TASKS.replace("num_samples = 2", "num_samples = 3\nenough = 1"))
    serving = served(node, 6)
    arguments = ["eval", "tasks.toml", "--server", service.url, "--json", "--solved-at", "0", "-k", "1"]
    result = CliRunner().invoke(app, arguments)
    with SyncPolarClient(service.url) as client:
        for task in client.tasks():
            client.cancel_task(task.task_id)
    assert solved_of(json.loads(result.stdout)) == (6, 6, 1.0, {})
    serving.join()


def test_a_task_that_the_server_refuses_cancels_those_before_it(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNode(service.url)
    (folder / "not_allowed.py").write_text("def judge(attempt):\n    return 1.0\n")
    monkeypatch.syspath_prepend(str(folder))
    (folder / "tasks.toml").write_text(TASKS + 'evaluator = "not_allowed:judge"\n')
    result = CliRunner().invoke(app, ["eval", "tasks.toml", "--server", service.url])
    assert result.exit_code == 2 and "not_allowed" in result.stderr, result.output
    assert "may still run" not in result.stderr
    with SyncPolarClient(service.url) as client:
        assert [session.stage for session in client.sessions()] == [Stage.CANCELLED] * 2
