"""Task sets: a table of a task file is read by its format's reader; what cannot run is listed, the rest runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from polar.data.task_sets import SETS, SkippedTask, TaskItem
from polar.data.tasks import read_task_set, read_tasks
from polar.errors import ConfigError


def read_lines(table: Mapping[str, Any], folder: Path) -> Iterator[TaskItem | SkippedTask]:
    """One task for each line of a file; a line with a question mark cannot run."""
    if "lines" not in table:
        raise ConfigError("lines: missing; name the file of lines")
    lines = (folder / table["lines"]).read_text().splitlines()
    for line in lines:
        if "?" in line:
            yield SkippedTask(line, "is a question")
        else:
            yield TaskItem(line, {"task_id": line, "instruction": line})


@pytest.fixture(autouse=True)
def _lines_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "lines", f"{__name__}:read_lines")


def task_file(folder: Path, lines: str, text: str = '[lines]\nlines = "lines.txt"\n') -> Path:
    (folder / "lines.txt").write_text(lines)
    path = folder / "tasks.toml"
    path.write_text(text)
    return path


def test_each_item_is_a_task_with_the_defaults_of_the_file(tmp_path: Path) -> None:
    text = '[defaults]\nnum_samples = 3\n[lines]\nlines = "lines.txt"\n'
    tasks, skipped = read_task_set(task_file(tmp_path, "add\nsort", text))
    assert [(task.task_id, task.num_samples) for task in tasks] == [("add", 3), ("sort", 3)]
    assert skipped == ()


def test_what_cannot_run_is_skipped_and_the_rest_runs(tmp_path: Path) -> None:
    tasks, skipped = read_task_set(task_file(tmp_path, "add\nwhy?\n two words\nsort"))
    assert [task.task_id for task in tasks] == ["add", "sort"]
    assert [each.where for each in skipped] == ["why?", " two words"]
    assert skipped[0].why == "is a question"
    assert "task_id: letters, digits" in skipped[1].why


def test_a_task_that_is_there_twice_is_skipped(tmp_path: Path) -> None:
    text = '[[tasks]]\ntask_id = "add"\ninstruction = "by hand"\n[lines]\nlines = "lines.txt"\n'
    tasks, skipped = read_task_set(task_file(tmp_path, "add\nsort", text))
    assert [(task.task_id, task.instruction) for task in tasks] == [("add", "by hand"), ("sort", "sort")]
    assert "is used at line 1 too" in skipped[0].why


def test_a_warning_lists_what_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tasks = read_tasks(task_file(tmp_path, "add\nwhy?"))
    assert len(tasks) == 1
    assert "1 of 2 tasks cannot run and are left out" in caplog.text
    assert "why?: is a question" in caplog.text


def test_a_set_of_which_nothing_can_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no task can:\n  why\?: is a question"):
        read_tasks(task_file(tmp_path, "why?"))


def test_a_wrong_table_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[lines\]: lines: missing; name the file of lines"):
        read_tasks(task_file(tmp_path, "add", "[lines]\n"))


def test_an_unknown_table_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown table 'rows'.*\[swe\]"):
        read_tasks(task_file(tmp_path, "add", '[rows]\nlines = "lines.txt"\n'))
