"""`polar run --resume`: what has its result is never run again, the rest runs in the same run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar import load_run
from polar.cli.app import app
from scripted_project import write_project
from waiting import HANG_S, blocked_until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def a_task(folder: Path, task_id: str, then: str = "true", **fields: Any) -> dict[str, Any]:
    """Its agent notes the session in `ran.txt`, asks the model, and ends with `then`."""
    note = f"echo {task_id} >> {folder}/ran.txt"
    command = f"{note}; {sys.executable} {folder}/agent.py > said.txt; {then}"
    return {
        "task_id": task_id,
        "instruction": "Say hello.",
        "harness": {"name": "shell", "options": {"command": command}},
        "evaluator": {"name": "test_on_output", "options": {"command": "grep Hello said.txt"}},
        **fields,
    }


def write(folder: Path, *tasks: dict[str, Any]) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))


def polar(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def states() -> list[str]:
    return [run["state"] for run in json.loads(polar("ls", "--json").stdout)["runs"]]


def ran(folder: Path) -> list[str]:
    return (folder / "ran.txt").read_text().split()


def test_only_what_has_no_result_runs_after_a_kill(folder: Path) -> None:
    hang = f"test -e {folder}/go-on || {{ touch {folder}/hangs; sleep 600; }}"
    write(folder, a_task(folder, "done"), a_task(folder, "cut", hang), a_task(folder, "last"))
    config = folder / "polar.toml"
    config.write_text(config.read_text() + "[pools]\ninit = 1\nready = 1\nrunning = 1\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "run", "tasks.jsonl", "--json"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    try:
        blocked_until(lambda: (folder / "hangs").exists() or process.poll() is not None)
        blocked_until(lambda: process.poll() is not None or len(load_run().results) == 1)
        assert process.poll() is None
        assert states() == ["running"]
    finally:
        process.kill()
        process.wait(HANG_S)
    run_id = next((folder / "polar-runs").iterdir()).name
    assert states() == ["killed"]
    assert f"its run is killed; `polar run --resume {run_id}`" in polar("show", "cut-0").stdout
    (folder / "go-on").touch()
    (folder / "tasks.jsonl").unlink()

    resumed = polar("run", "--resume", run_id, "--json")

    assert resumed.exit_code == 0, resumed.output
    value = json.loads(resumed.stdout)
    assert value["run_id"] == run_id
    assert [(r["session_id"], r["attempt"], r["stage"]) for r in value["results"]] == [
        ("done-0", 1, "COMPLETED"),
        ("cut-0", 2, "COMPLETED"),
        ("last-0", value["results"][2]["attempt"], "COMPLETED"),
    ]
    assert ran(folder) == ["done", "cut", "cut", "last"]
    assert value["results"][1]["attempts"][0]["why"] == "the run ended before the session did"
    listed = json.loads(polar("ls", "--json").stdout)["runs"]
    assert [(run["stages"], run["finished"] is not None) for run in listed] == [({"COMPLETED": 3}, True)]
    assert polar("audit", run_id).exit_code == 0


def test_infrastructure_failures_run_again_only_on_request(folder: Path) -> None:
    agent = folder / "late-agent"
    broken = a_task(folder, "broken") | {"harness": {"name": "shell", "options": {"command": str(agent)}}}
    write(folder, a_task(folder, "good"), broken)
    first = polar("run", "tasks.jsonl", "--json")
    assert first.exit_code == 1
    run_id = json.loads(first.stdout)["run_id"]
    agent.write_text(f"#!/bin/sh\n{a_task(folder, 'broken')['harness']['options']['command']}\n")
    agent.chmod(0o755)

    kept = polar("run", "--resume", run_id)
    assert kept.exit_code == 1 and "2 of 2 sessions have their result; none to run" in kept.stderr
    assert ran(folder) == ["good"]

    again = polar("run", "--resume", run_id, "--retry-failed", "--json")
    assert again.exit_code == 0, again.output
    assert [(r["session_id"], r["score"]["reward"]) for r in json.loads(again.stdout)["results"]] == [
        ("good-0", 1.0),
        ("broken-0", 1.0),
    ]
    assert ran(folder) == ["good", "broken"]


def test_a_file_adds_tasks_and_may_not_change_any(folder: Path) -> None:
    write(folder, a_task(folder, "one"))
    run_id = json.loads(polar("run", "tasks.jsonl", "--json").stdout)["run_id"]
    write(folder, a_task(folder, "one"), a_task(folder, "two"))
    assert polar("run", "--resume", run_id, "tasks.jsonl").exit_code == 0
    assert ran(folder) == ["one", "two"]
    write(folder, a_task(folder, "one", instruction="Say bye."))
    refused = polar("run", "--resume", run_id, "tasks.jsonl")
    assert refused.exit_code == 2 and "task one: the run has another task of this id" in refused.stderr


def test_what_cannot_be_continued_is_refused(folder: Path) -> None:
    write(folder, a_task(folder, "one"))
    run_id = json.loads(polar("run", "tasks.jsonl", "--json").stdout)["run_id"]
    stored = folder / "polar-runs" / run_id
    assert "--retry-failed needs --resume" in polar("run", "tasks.jsonl", "--retry-failed").stderr
    assert "give a task file" in polar("run").stderr
    assert "give the task file too" in polar("run", "--resume", run_id, "--samples", "2").stderr
    (stored / "owner").write_text("another machine\n")
    assert "is still going" in polar("run", "--resume", run_id).stderr
    (stored / "owner").unlink()
    (stored / "tasks.jsonl").unlink()
    assert "give the task file too" in polar("run", "--resume", run_id).stderr
    assert polar("run", "--resume", run_id, "tasks.jsonl").exit_code == 0
    (folder / "polar.toml").write_text('[engine]\nname = "embedded"\n')
    assert "was made with another [engine]" in polar("run", "--resume", run_id).stderr
    assert ran(folder) == ["one"]
