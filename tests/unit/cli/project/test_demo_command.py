"""`polar demo`: the tasks that come with the package, so that no checkout is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.project import demo
from polar.cli.project.demo import DEMO_TASKS
from polar.data.tasks import read_tasks

ROOT = Path(__file__).parents[4]


def test_the_tasks_stand_in_the_package_and_once() -> None:
    assert (ROOT / "examples" / "demo.toml").resolve() == DEMO_TASKS
    assert [task.task_id for task in read_tasks(DEMO_TASKS)] == ["word", "folder", "number", "copy"]


def test_it_runs_them_through_the_whole_service(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(demo, "up", lambda _, *tasks, **options: asked.append((tasks, options)))
    done = CliRunner().invoke(app, ["demo", "--samples", "2", "--json"])
    assert done.exit_code == 0 and asked == [((DEMO_TASKS,), {"samples": 2, "json": True})]
