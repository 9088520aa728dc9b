"""`polar tasks convert`: a set in, a task file out, and what is left out has a reason."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tests.unit.data import test_task_sets
from typer.testing import CliRunner

from polar.cli.app import app
from polar.data.task_sets import SETS
from polar.data.tasks import read_tasks

DEMO = Path(__file__).parents[4] / "examples" / "demo.toml"


def converted(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tasks", "convert", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_set_goes_through_all_forms_and_stays_the_same(tmp_path: Path) -> None:
    paths = [DEMO, *(tmp_path / f"demo.{suffix}" for suffix in ("parquet", "jsonl", "toml"))]
    for source, out in itertools.pairwise(paths):
        assert converted(source, out) == (0, f"4 tasks in {out}\n")
    assert read_tasks(paths[-1]) == read_tasks(DEMO)


def test_what_is_left_out_has_a_reason_and_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "lines", f"{test_task_sets.__name__}:read_lines")
    source, out = test_task_sets.task_file(tmp_path, "add\nwhy?\nsort"), tmp_path / "out.jsonl"
    code, printed = converted(source, out)
    assert code == 1 and "is a question" in printed and "2 tasks in" in printed and "1 left out" in printed
    code, printed = converted(source, out, "--force", "--limit", "1", "--json")
    assert code == 1
    assert json.loads(printed) == {
        "out": str(out),
        "tasks": 1,
        "skipped": [{"where": "why?", "why": "is a question"}],
    }
    assert [task.task_id for task in read_tasks(out)] == ["add"]


def test_an_existing_file_stays_unless_it_is_forced(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    out.write_text("mine")
    code, printed = converted(DEMO, out)
    assert code == 2 and "--force replaces it" in printed and out.read_text() == "mine"
