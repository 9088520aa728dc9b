"""`polar tasks ls`: a task file is checked, its tasks are listed, and nothing runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.data import test_task_sets
from typer.testing import CliRunner

from polar.cli.app import app
from polar.data.task_sets import SETS

DEMO = Path(__file__).parents[4] / "examples" / "demo.toml"


def test_a_good_file_is_listed() -> None:
    result = CliRunner().invoke(app, ["tasks", "ls", str(DEMO)])
    assert result.exit_code == 0, result.output
    assert "4 tasks, 24 sessions" in result.stdout
    assert "test_on_output" in result.stdout


def test_what_is_left_out_has_a_reason_and_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "lines", f"{test_task_sets.__name__}:read_lines")
    path = test_task_sets.task_file(tmp_path, "add\nwhy?")
    result = CliRunner().invoke(app, ["tasks", "ls", str(path)])
    assert result.exit_code == 1
    assert "is a question" in result.stdout
    assert "1 tasks, 1 sessions, 1 left out" in result.stdout
    as_json = json.loads(CliRunner().invoke(app, ["tasks", "ls", str(path), "--json"]).stdout)
    assert [task["task_id"] for task in as_json["tasks"]] == ["add"]
    assert as_json["skipped"] == [{"where": "why?", "why": "is a question"}]


def test_a_file_that_is_refused_names_the_reason(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["tasks", "ls", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "no such file" in result.output


def test_check_reports_which_tasks_are_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluator = {"name": "test_on_output", "options": {"command": "test -e done"}}
    tasks = [{"task_id": name, "instruction": "x", "evaluator": evaluator} for name in ("good", "bad")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (tmp_path / "good.sh").write_text("touch done\n")
    (tmp_path / "bad.sh").write_text("true\n")
    command = ["tasks", "check", "tasks.jsonl", "--solutions", "."]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    assert "1 of 2 tasks are sound" in result.stdout and "the solution earns 0" in result.stdout
    value = json.loads(CliRunner().invoke(app, [*command, "--filter", "task_id=good", "--json"]).stdout)
    assert (value["sound"], value["logs"], value["tasks"][0]["problem"]) == (1, None, "")
