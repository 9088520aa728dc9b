"""`polar run` as a user meets it: a scripted model, a shell harness, real everything else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.test_git_sets import Repository
from typer.testing import CliRunner

from polar.cli.app import app
from polar.store.paths import RunPaths
from scripted_project import write_project
from waiting import HANG_S, blocked_until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project: a config with an engine of their own, an agent, a task file."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_tasks(tmp_path, f"{sys.executable} {tmp_path}/agent.py > said.txt", "grep Hello said.txt")
    return tmp_path


def write_tasks(folder: Path, command: str, check: str, **fields: Any) -> None:
    task = {
        "task_id": "say",
        "instruction": "Say hello.",
        "num_samples": 2,
        "harness": {"name": "shell", "options": {"command": command}},
        "evaluator": {"name": "test_on_output", "options": {"command": check}},
        **fields,
    }
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")


def polar(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_run_ends_in_a_table_and_what_to_do_next(folder: Path) -> None:
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 0, result.output
    assert "1.0 1.0" in result.stdout and "merge rate" in result.stdout
    assert "each in exactly one trace, + 0 dropped" in result.stdout
    assert " show say-0 --tokens" in result.stdout
    listed = json.loads(polar("ls", "--json").stdout)["runs"]
    assert [(run["stages"], run["mean_reward"]) for run in listed] == [({"COMPLETED": 2}, 1.0)]
    assert listed[0]["finished"] is not None


def test_json_is_all_there_is_on_stdout(folder: Path) -> None:
    value = json.loads(polar("run", "tasks.jsonl", "--json", "--samples", "3").stdout)
    assert (value["sessions"], value["mean_reward"], len(value["results"])) == (3, 1.0, 3)
    assert value["sampled_tokens"] == value["trainable_tokens"] > 0
    assert [r["session_id"] for r in value["results"]] == ["say-0", "say-1", "say-2"]
    assert (folder / value["path"] / value["results"][0]["traces"]).is_file()


@pytest.mark.check
def test_the_commit_of_a_set_is_listed_and_kept_with_the_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path_factory.mktemp("cache")))
    made = Repository(folder / "set")
    commit = made.commit(tasks__jsonl=(folder / "tasks.jsonl").read_text())
    listed = polar("tasks", "ls", made.address)
    assert listed.exit_code == 0 and f"from {made.address}@{commit}" in listed.stdout.replace("\n", "")
    first = json.loads(polar("run", f"{made.address}@main", "--samples", "1", "--json").stdout)
    assert RunPaths(folder / first["path"]).read_record().task_set == f"{made.address}@{commit}"
    polar("run", "--resume", first["run_id"], "--json")
    assert RunPaths(folder / first["path"]).read_record().task_set == f"{made.address}@{commit}"


def test_a_failure_of_the_policy_is_no_failure_of_the_run(folder: Path) -> None:
    write_tasks(folder, f"{sys.executable} {folder}/agent.py > said.txt; exit 1", "false")
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 0
    assert "0.0 0.0" in result.stdout


def test_a_failure_of_the_infrastructure_is_one(folder: Path) -> None:
    write_tasks(folder, "no-such-agent", "true")
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 1
    assert "no-such-agent" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '{"instruction": "x", "harness": "codexx"}',
            "unknown harness 'codexx'; did you mean 'codex'? known: claude_code, codex, gemini_cli, opencode",
        ),
        ('{"instruction": "x", "num_samples": -1}', "num_samples"),
        ("{}", "instruction: missing"),
        ('{"instruction": "x", "task_id": "../up"}', "task_id"),
        ("", "empty"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(folder: Path, content: str, words: str) -> None:
    (folder / "tasks.jsonl").write_text(content)
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 2
    assert words in result.stderr and "Traceback" not in result.output
    assert not (folder / "polar-runs").exists()


@pytest.mark.parametrize(
    ("name", "why"), [("big.json", "write it as JSONL"), ("big.jsonl", "line 1: longer than")]
)
def test_a_file_that_is_far_too_large_is_not_even_read(folder: Path, name: str, why: str) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(2 * 2**30)  # takes no space
    result = polar("run", name)
    assert result.exit_code == 2 and why in result.stderr


def test_a_missing_file_and_a_missing_config(folder: Path) -> None:
    assert "no such file" in polar("run", "absent.toml").stderr
    assert "no config file" in polar("run", "tasks.jsonl", "--config", "absent.toml").stderr


def test_an_engine_that_does_not_start_is_an_error_of_one_line(folder: Path) -> None:
    (folder / "polar.toml").write_text('[engine]\nname = "embedded"\noptions = { gguf = "absent.gguf" }\n')
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 2
    assert "no GGUF file at absent.gguf" in result.stderr
    assert not list((folder / "polar-runs").iterdir()), "a refused start leaves no run"


def test_a_gateway_port_in_use_is_an_error_that_names_the_setting(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = folder / "polar.toml"
        config.write_text(config.read_text() + f"[gateway]\nport = {port}\n")
        result = polar("run", "tasks.jsonl")
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: Address already in use; set another [gateway] port" in result.stderr
    assert not list((folder / "polar-runs").iterdir())


def test_a_runtime_that_is_missing_leaves_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/no.sock")
    write_tasks(folder, "true", "true", runtime={"name": "docker", "options": {"image": "polar-base"}})
    result = polar("run", "tasks.jsonl")
    assert result.exit_code == 2 and "runtime docker" in result.stderr
    assert not list((folder / "polar-runs").iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_captured_and_leaves_nothing_running(
    folder: Path, how: signal.Signals
) -> None:
    started = folder / "started"
    write_tasks(folder, f"{sys.executable} {folder}/agent.py; touch {started}; sleep 600", "true", num_samples=1)
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "run", "tasks.jsonl", "--json"]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        blocked_until(started.exists)
        process.send_signal(how)
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    value = json.loads(output)
    assert [(r["stage"], r["statistics"]["calls"]) for r in value["results"]] == [("CANCELLED", 1)]
    assert value["trainable_tokens"] > 0
    assert list((folder / value["path"]).glob("sessions/*/place")) == []
    [row] = json.loads(polar("ls", "--json").stdout)["runs"]
    assert row["state"] == "interrupted"


def test_several_harnesses_over_one_file_are_compared(folder: Path) -> None:
    good, bad = (f"{sys.executable} {folder}/agent.py > {name}" for name in ("said.txt", "elsewhere.txt"))
    harnesses = [f"shell:{json.dumps({'command': command})}" for command in (good, bad)]
    options = ["--harness", harnesses[0], "--harness", harnesses[1], "--samples", "1"]
    result = polar("run", "tasks.jsonl", *options, "--json")
    value = json.loads(result.stdout)
    assert value["by_harness"] == {"shell": 1.0, "shell-2": 0.0}
    assert [r["task_id"] for r in value["results"]] == ["say.shell", "say.shell-2"]
    shown = polar("run", "tasks.jsonl", *options).stdout
    assert [line.split()[:3] for line in shown.splitlines() if line.strip().startswith("shell")] == [
        ["shell", "1", "1.00"],
        ["shell-2", "1", "0.00"],
    ]
