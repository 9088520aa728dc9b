"""`polar eval` as a user meets it: scripted models, shell harnesses, real everything else."""

from __future__ import annotations

import builtins
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
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
from polar.errors import EngineError
from polar.testing import ScriptedEngine
from polar.types import Strict

class Says(Engine):
    class Options(Strict):
        words: list[str]
        starts: int = 100

    begun = 0

    def __init__(self, options):
        words, self.starts = options.words, options.starts
        ScriptedEngine.__init__(self, None, lambda turn, prompt: words[len(self.requests) % len(words)])

    async def start(self):
        if Says.begun >= self.starts:
            raise EngineError("its weights are gone")
        Says.begun += 1
        return await super().start()
"""
TASKS = ("sea", "hill", "lake")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's project: a policy that says hello every second time, one that always does, three tasks."""
    write_project(tmp_path)
    (tmp_path / "saying.py").write_text(ENGINE)
    write_config(tmp_path, "base", '["Hello.", "Bye."]')
    write_config(tmp_path, "trained", '["Hello."]')
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
    for name in ("POLAR_SERVER", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    sys.modules.pop("saying", None)


def write_config(folder: Path, name: str, words: str, more: str = "") -> None:
    engine = f'name = "saying:Says"\noptions = {{ words = {words}{more} }}'
    (folder / f"{name}.toml").write_text(f"[engine]\n{engine}\n[pools]\nrunning = 1\n")


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
    assert "3 of 6 sessions have no reward: infrastructure 3. They count as not solved" in result.stdout
    assert "in no mean" not in result.stdout


def test_a_failure_of_infrastructure_is_told_whole_with_a_session_to_look_at(folder: Path) -> None:
    missing = json.dumps({"command": "true"})
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    source = {"folder": str(folder / ("no-such-folder-" * 12))}
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps({**task, "workspace": source}) for task in tasks))
    result = call("tasks.jsonl", "--config", "trained.toml", "--harness", f"shell:{missing}")
    (run_id,) = os.listdir("polar-runs")
    failures = [each.failure for each in polar.load_run(run_id).results if each.failure is not None]
    (reason,) = {f"{failure.where}: {failure.message}" for failure in failures}
    assert len(reason) > 180 and result.stderr.count(reason) == 6, "in the line of each session"
    assert f"6 failed through infrastructure: {reason}. `" in result.stdout
    shown = re.search(r"show \S+ --run \S+(?=`)", result.stdout)
    assert shown is not None and CliRunner().invoke(app, shlex.split(shown[0])).exit_code == 0


def test_a_bare_name_keeps_the_task_s_own_options(folder: Path) -> None:
    result = call("tasks.jsonl", "--config", "trained.toml", "--harness", "shell", "--json")
    assert json.loads(result.stdout)["variants"][0]["solved"] == 6, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks.jsonl", "-k", "1,4"], "from 1 to 2, the most samples of a task; --samples changes them"),
        (["tasks.jsonl", "--solved-at", "nan"], "--solved-at nan: write a number"),
        (["tasks.jsonl", "--plot", "folder.png"], "folder.png is a folder"),
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
        (["--compare", "a", "--samples", "8"], "--samples would have no effect"),
        (["--compare", "a", "--server", "http://127.0.0.1:9"], "--server would have no effect"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_refused_before_anything_runs(
    folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "folder.png").mkdir()
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


def test_a_server_of_the_environment_is_named_where_it_is_in_the_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("tasks.jsonl", "--config", "base.toml").exit_code == 0
    monkeypatch.setenv("POLAR_SERVER", "http://127.0.0.1:9")
    refused = call("tasks.jsonl", "--config", "base.toml")
    assert refused.exit_code == 2 and "POLAR_SERVER names the server http://127.0.0.1:9" in refused.stderr
    (run_id,) = os.listdir("polar-runs")
    assert call("--compare", run_id).exit_code == 0, "nothing is run, at no server"


def test_a_k_that_some_tasks_reach_is_over_those(folder: Path) -> None:
    first, *others = (folder / "tasks.jsonl").read_text().splitlines()
    (folder / "tasks.jsonl").write_text("\n".join([json.dumps({**json.loads(first), "num_samples": 4}), *others]))
    result = call("tasks.jsonl", "--config", "trained.toml", "-k", "1,4")
    assert result.exit_code == 0, result.output
    assert "pass@4 is over 1 of 3 tasks" in result.stdout
    (run_id,) = os.listdir("polar-runs")
    refused = call("--compare", run_id, "-k", "8")
    assert "from 1 to 4, the most samples of a task in these runs" in refused.stderr
    assert "--samples" not in refused.stderr


def test_a_second_policy_that_cannot_start_is_found_before_the_first_has_run(folder: Path) -> None:
    write_config(folder, "trained", '["Hello."]', ", starts = 0")
    result = call("tasks.jsonl", "--config", "base.toml", "--against", "trained.toml")
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert "policy trained cannot start: its weights are gone" in result.stderr
    assert not (folder / "polar-runs").exists()


def test_a_second_policy_that_breaks_off_leaves_the_report_of_the_first(folder: Path) -> None:
    """Its engine starts for the check and not again, when the first policy has run."""
    write_config(folder, "trained", '["Hello."]', ", starts = 2")
    result = call("tasks.jsonl", "--config", "base.toml", "--against", "trained.toml", "--json", "-k", "1")
    assert result.exit_code == 2 and "policy trained: its weights are gone" in result.stderr, result.output
    (run_id,) = os.listdir("polar-runs")
    assert EvalReport.model_validate_json(result.stdout) == report_in(folder, run_id)
    assert report_in(folder, run_id).variants[0].sessions == 6
    write_config(folder, "trained", '["Hello."]')
    alone, compare = printed(result.stderr)
    assert alone == ["eval", "tasks.jsonl", "--config", "trained.toml", "-k", "1"]
    assert CliRunner().invoke(app, alone).exit_code == 0
    second = max(os.listdir("polar-runs"))
    compared = CliRunner().invoke(app, [word.replace("RUN", second) for word in compare])
    assert "base -> trained" in compared.stdout and "+0.50" in compared.stdout, compared.output


def printed(stderr: str) -> list[list[str]]:
    """The commands that it names, without `polar`."""
    return [shlex.split(line)[1:] for line in re.findall(r"^  (.+?)  .*$", stderr, re.MULTILINE)]


def test_ctrl_c_reports_what_has_ended_and_how_to_go_on(folder: Path) -> None:
    """One session is solved, one runs and four wait: what Ctrl-C cancels is no failure of the policy."""
    started, agent = folder / "started", f"{sys.executable} {folder}/agent.py > said"
    quick = f"mkdir {folder}/first 2>/dev/null || [ -e {folder}/fast ]"
    command = json.dumps({"command": f"if {quick}; then {agent}; else touch {started}; sleep 600; fi"})
    arguments = ["--config", "trained.toml", "--against", "base.toml", "--harness", f"shell:{command}", "-k", "1"]
    code, out, err = interrupted(folder, ["tasks.jsonl", *arguments], started)
    assert code == 130 and "interrupted; what was captured is kept in" in err, err
    assert "policy trained: 5 sessions have not ended and are in no rate" in out
    (run_id,) = os.listdir("polar-runs")
    report = report_in(folder, run_id)
    assert (report.variants[0].sessions, report.variants[0].solved, report.not_ended) == (1, 1, {"trained": 5})
    shown = json.loads(call("--compare", f"trained={run_id}", "--json", "-k", "1").stdout)
    assert shown["variants"] == json.loads(report.model_dump_json())["variants"]
    assert shown["not_ended"] == {"trained": 5}

    assert "runs what is left of trained" in err and "runs base, which was not run" in err
    (folder / "fast").touch()
    resume, alone, compare = printed(err)
    for arguments in (resume, alone):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    second = max(os.listdir("polar-runs"))
    compared = CliRunner().invoke(app, [word.replace("RUN", second) for word in compare])
    assert "trained -> base" in compared.stdout and "have not ended" not in compared.stdout, compared.output


def interrupted(folder: Path, arguments: list[str], started: Path) -> tuple[int, str, str]:
    """Ctrl-C when a file is there and a session has ended: exit code, stdout and stderr."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "eval", *arguments]
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        env = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)
    try:
        blocked_until(lambda: started.exists() and "COMPLETED" in errors.read_text())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    return process.returncode, out, errors.read_text()


def test_the_help_has_examples_and_says_what_a_policy_is() -> None:
    shown = CliRunner().invoke(app, ["eval", "--help"], env={"COLUMNS": "100", "TERM": "dumb"}).stdout
    assert "polar eval --compare base=RUN trained=RUN" in shown and "any endpoint" in shown
