"""`polar eval` as a user meets it: scripted models, shell harnesses, real everything else."""

from __future__ import annotations

import builtins
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polar
from polar.cli.app import app
from polar.trainers.evaluation import EvalReport
from scripted_project import write_project
from waiting import HANG_S, blocked_until

ENGINE = """
from my_engine import Engine
from polar.testing import ScriptedEngine
from polar.types import Strict

class Says(Engine):
    class Options(Strict):
        words: list[str]

    def __init__(self, options):
        words = options.words
        ScriptedEngine.__init__(self, None, lambda turn, prompt: words[len(self.requests) % len(words)])
"""
TASKS = ("sea", "hill", "lake")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project: a policy that says hello every second time, one that always does, three tasks."""
    write_project(tmp_path)
    (tmp_path / "saying.py").write_text(ENGINE)
    for name, words in {"base": ["Hello.", "Bye."], "trained": ["Hello."]}.items():
        text = (
            f'[engine]\nname = "saying:Says"\noptions = {{ words = {json.dumps(words)} }}\n[pools]\nrunning = 1\n'
        )
        (tmp_path / f"{name}.toml").write_text(text)
    tasks = [
        {
            "task_id": task_id,
            "instruction": f"Say hello to the {task_id}.",
            "num_samples": 2,
            "harness": {"name": "shell", "options": {"command": f"{sys.executable} {tmp_path}/agent.py > said"}},
            "evaluator": {"name": "test_on_output", "options": {"command": "grep Hello said"}},
        }
        for task_id in TASKS
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["eval", *arguments])


def report_in(folder: Path, run_id: str) -> EvalReport:
    return EvalReport.model_validate_json((folder / "polar-runs" / run_id / "eval.json").read_bytes())


def test_a_policy_is_measured_and_its_sessions_are_a_run(folder: Path) -> None:
    result = call("tasks.jsonl", "--config", "base.toml", "--samples", "4", "-k", "1,2")
    assert result.exit_code == 0, result.output
    (run_id,) = os.listdir("polar-runs")
    report = report_in(folder, run_id)
    (measured,) = report.variants
    variant = measured.variant
    assert (variant.policy, variant.harness, variant.runtime) == ("base", "shell", "local")
    assert (measured.sessions, measured.solved, measured.infrastructure) == (12, 6, 0)
    assert [rates.k for rates in measured.rates] == [1, 2] and report.runs == {"base": run_id}
    stored = polar.load_run(run_id)
    assert len(stored) == 12 and {session.task.task_id for session in stored} == set(TASKS)
    assert "pass@1" in result.stdout and "pass^2" in result.stdout and "bootstrap over tasks" in result.stdout
    assert "eval.json" in result.stdout


def test_base_against_trained_is_paired_by_task(folder: Path) -> None:
    result = call("tasks.jsonl", "--config", "base.toml", "--against", "trained.toml", "--json")
    report = EvalReport.model_validate(json.loads(result.stdout))
    assert [each.variant.policy for each in report.variants] == ["base", "trained"]
    assert [each.solved for each in report.variants] == [3, 6]
    first = next(each for each in report.differences if each.k == 1)
    assert (first.base.policy, first.variant.policy, first.tasks) == ("base", "trained", 3)
    assert first.pass_at.value == pytest.approx(0.5)
    assert len(report.runs) == 2 and all(report_in(folder, run_id) == report for run_id in report.runs.values())


def test_stored_runs_are_compared_without_running_anything(folder: Path) -> None:
    for name in ("base", "trained"):
        assert call("tasks.jsonl", "--config", f"{name}.toml").exit_code == 0
    first, second = sorted(os.listdir("polar-runs"))
    result = call("--compare", f"before={first}", f"after={second}")
    assert result.exit_code == 0, result.output
    assert "before -> after" in result.stdout and "+0.50" in result.stdout
    assert sorted(os.listdir("polar-runs")) == [first, second]
    value = json.loads(call("--compare", first, second, "--json", "-k", "1").stdout)
    assert [each["variant"]["policy"] for each in value["variants"]] == [first, second]


def test_several_harnesses_run_over_one_set(folder: Path) -> None:
    """One of them is killed from outside, which is infrastructure and still counts."""
    good = json.dumps({"command": f"{sys.executable} {folder}/agent.py > said"})
    result = call(
        *("tasks.jsonl", "--config", "trained.toml", "--harness", f"shell:{good}"),
        *("--harness", 'shell:{"command": "kill -9 $$"}', "--runtime", "local", "--samples", "1"),
    )
    assert result.exit_code == 1, result.output
    (run_id,) = os.listdir("polar-runs")
    report = report_in(folder, run_id)
    rows = [(each.variant.harness, each.sessions, each.solved, each.infrastructure) for each in report.variants]
    assert rows == [("shell", 3, 3, 0), ("shell-2", 3, 0, 3)]
    assert [tally.task for tally in report.variants[1].tasks] == sorted(TASKS)
    ids = {session.task.task_id for session in polar.load_run(run_id)}
    assert {"sea.shell.local", "sea.shell-2.local"} <= ids
    assert "solved 0.00 [0.00, 0.56] of all sessions, none has a reward" in result.stdout
    assert "infrastructure 3" in result.stdout


def test_a_bare_name_keeps_the_task_s_own_options(folder: Path) -> None:
    result = call("tasks.jsonl", "--config", "trained.toml", "--harness", "shell", "--json")
    assert json.loads(result.stdout)["variants"][0]["solved"] == 6, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks.jsonl", "-k", "1,4"], "from 1 to 2"),
        (["tasks.jsonl", "-k", "one"], "write numbers"),
        (["tasks.jsonl", "tasks.jsonl"], "one task file"),
        (["tasks.jsonl", "--harness", "moon"], "unknown harness 'moon'"),
        (["tasks.jsonl", "--harness", "pi:{no json}"], "options as JSON"),
        (["tasks.jsonl", "--config", "base.toml", "--against", "base.toml"], "rename one"),
        (["tasks.jsonl", "--config", "base.toml", "--server", "http://127.0.0.1:9"], "their own config"),
        (["tasks.jsonl", "--plot", "curve.txt"], ".png, .svg"),
        (["tasks.jsonl", "--plot", "moon/curve.png"], "no folder"),
        (["--compare", "moon"], "no run"),
        (["--compare", "a", "b", "--harness", "pi"], "would have no effect"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_refused_before_anything_runs(
    folder: Path, arguments: list[str], message: str
) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and message in result.stderr, result.output
    assert not (folder / "polar-runs").exists()


def test_a_plot_without_matplotlib_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    result = call("tasks.jsonl", "--config", "base.toml", "--plot", "curve.png")
    assert result.exit_code == 2 and "polar-rollout[plot]" in result.stderr
    assert not (folder / "polar-runs").exists()


def test_ctrl_c_reports_what_has_ended(folder: Path) -> None:
    started = folder / "started"
    slow = json.dumps({"command": f"touch {started}; sleep 600"})
    arguments = ["eval", "tasks.jsonl", "--config", "trained.toml", "--harness", f"shell:{slow}"]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", "from polar.cli.app import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        blocked_until(started.exists)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, err.decode()
    assert b"interrupted" in err and b"have not ended and are in no rate" in out
    assert len(list(folder.glob("polar-runs/*/eval.json"))) == 1
