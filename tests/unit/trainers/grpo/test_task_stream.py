"""The tasks of a training run by number: from a file, or from a set in a git repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.data.test_git_sets import Repository

from polar.errors import ConfigError
from polar.trainers.grpo.task_stream import TaskStream

LINES = "".join(json.dumps({"task_id": name, "instruction": name}) + "\n" for name in "abc")


def sources(stream: TaskStream) -> list[str]:
    made = (stream.task(number, f"t{number}", 2) for number in range(6))
    return [task.metadata["source_id"] for task in made]


def test_each_round_has_every_task_once(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(LINES)
    found = sources(TaskStream("tasks.jsonl", tmp_path))
    assert sorted(found[:3]) == sorted(found[3:]) == ["a", "b", "c"]
    assert found == sources(TaskStream("tasks.jsonl", tmp_path)), "the same number is always the same task"


def test_a_set_in_git_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    made = Repository(tmp_path / "set")
    made.commit(tasks__jsonl=LINES)
    assert sorted(sources(TaskStream(f"{made.address}@main", tmp_path))[:3]) == ["a", "b", "c"]


def test_each_seed_has_tasks_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "counted_tasks.py").write_text(
        "def task(n):\n    return {'task_id': str(n), 'instruction': 'count'}\n"
    )
    first, other = (sources(TaskStream("counted_tasks:task", tmp_path, seed)) for seed in (0, 1))
    assert first == list("012345")
    assert not set(first) & set(other)


def test_a_function_that_has_no_task_of_a_number_is_an_error_with_the_number(tmp_path: Path) -> None:
    (tmp_path / "few_tasks.py").write_text("def task(n):\n    return [{'instruction': 'only'}][n]\n")
    assert TaskStream("few_tasks:task", tmp_path).task(0, "t0", 1).instruction == "only"
    with pytest.raises(ConfigError, match="'few_tasks:task' made no task of the number 1: IndexError"):
        TaskStream("few_tasks:task", tmp_path).task(1, "t1", 1)


def test_streams_are_told_apart_by_what_their_numbers_mean(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(LINES)
    identity = TaskStream("tasks.jsonl", tmp_path).identity
    assert identity == TaskStream("tasks.jsonl", tmp_path).identity
    assert identity != TaskStream("tasks.jsonl", tmp_path, seed=1).identity
    path.write_text(LINES + json.dumps({"task_id": "d", "instruction": "d"}) + "\n")
    assert identity != TaskStream("tasks.jsonl", tmp_path).identity
