"""Options that choose tasks: the same for every command that takes a task file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.runs.summary import by_harness
from polar.cli.task_choice import choice_of, harness_of
from polar.errors import ConfigError
from polar.types import SessionResult, Stage, TaskRequest

TASKS = [TaskRequest(task_id=name, instruction="x", metadata={"kind": name[0]}) for name in ("a1", "a2", "b1")]


def test_no_option_chooses_everything() -> None:
    assert choice_of().is_everything and not choice_of(limit=1).is_everything
    assert choice_of().of(TASKS) == TASKS


def test_a_seed_without_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="--seed belongs to --sample"):
        choice_of(seed=3)


def test_each_task_once_per_harness_in_a_group_of_its_own() -> None:
    made = choice_of(filters=["metadata.kind=a"], harnesses=["pi", "codex"]).of(TASKS)
    assert [(task.task_id, task.harness.name, task.group) for task in made] == [
        ("a1.pi", "pi", "a1.pi"),
        ("a1.codex", "codex", "a1.codex"),
        ("a2.pi", "pi", "a2.pi"),
        ("a2.codex", "codex", "a2.codex"),
    ]
    assert made[1].metadata["polar_eval"]["task"] == "a1"
    assert harness_of(made) == {"a1.pi": "pi", "a1.codex": "codex", "a2.pi": "pi", "a2.codex": "codex"}


def test_one_harness_keeps_the_ids() -> None:
    made = choice_of(harnesses=["codex"]).of(TASKS)
    assert [(task.task_id, task.harness.name) for task in made] == [(t.task_id, "codex") for t in TASKS]


def test_results_are_grouped_by_harness() -> None:
    results = [
        SessionResult(session_id=f"{task_id}-0", task_id=task_id, index=0, attempt=1, stage=Stage.COMPLETED)
        for task_id in ("a1.pi", "a1.codex", "other")
    ]
    groups = by_harness(results, {"a1.pi": "pi", "a1.codex": "codex"})
    assert {name: [r.task_id for r in group] for name, group in groups.items()} == {
        "pi": ["a1.pi"],
        "codex": ["a1.codex"],
    }


def test_tasks_ls_lists_what_would_run(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(task.model_dump_json() + "\n" for task in TASKS))
    listed = CliRunner().invoke(app, ["tasks", "ls", str(path), "--filter", "metadata.kind=a", "--json"])
    assert [task["task_id"] for task in json.loads(listed.stdout)["tasks"]] == ["a1", "a2"]
    refused = CliRunner().invoke(app, ["tasks", "ls", str(path), "--shard", "5/4"])
    assert refused.exit_code == 2 and "write I/N" in refused.output
