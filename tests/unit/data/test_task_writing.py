"""Tasks written as a file of any form come back as they were."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from polar.data.task_writing import WRITERS, write_task_file
from polar.data.tasks import read_tasks
from polar.errors import ConfigError
from polar.toml.text import toml_table, toml_text
from polar.types import TaskRequest

TASKS = [
    TaskRequest.model_validate(
        {
            "task_id": "first",
            "instruction": 'Two lines,\nwith "quotes", \\n, \\ and """.\n',
            "num_samples": 3,
            "harness": {"name": "shell", "options": {"command": "echo 'a'\n\techo b\x7f"}},
            "evaluator": {"name": "test_on_output", "options": {"command": "test -e out"}},
            "budgets": {"run_s": 12.5, "max_calls": 3},
            "files": {"a b/ü.txt": "line\r\nend", "n.md": ""},
            "prepare": ["make", {"run": "make test", "timeout_s": 5, "env": {"A": "1"}}],
            "metadata": {"repo": "owner/name", "numbers": [1, 2.5, -3], "deep": {"a": {"b": [True, "x"]}}, "": 0},
            "priority": -2,
        }
    ),
    TaskRequest(task_id="second", instruction="{not JSON", group_id="g", callback_url="http://127.0.0.1/x"),
]
WITH_NULL = TaskRequest(task_id="null", instruction="x", metadata={"a": {"b": None}})


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_what_was_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tasks{suffix}"
    assert write_task_file(TASKS, path) == []
    assert read_tasks(path) == TASKS
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "nothing else is left"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_null_within_a_table_is_kept(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tasks{suffix}"
    assert write_task_file([WITH_NULL], path) == []
    assert read_tasks(path) == [WITH_NULL]


def test_toml_leaves_out_what_it_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    (skipped,) = write_task_file([WITH_NULL, TASKS[0]], path)
    assert skipped == ("null", "metadata: TOML has no null")
    assert read_tasks(path) == TASKS[:1]


def test_parquet_has_more_than_one_group_of_rows(tmp_path: Path) -> None:
    many = [TaskRequest(task_id=f"t{number}", instruction="x") for number in range(1_001)]
    write_task_file(many, tmp_path / "tasks.parquet")
    assert read_tasks(tmp_path / "tasks.parquet") == many


def test_another_form_is_refused_and_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write it as \.toml, \.jsonl, \.parquet, not '\.yaml'"):
        write_task_file(TASKS, tmp_path / "tasks.yaml")
    with pytest.raises(ConfigError, match="no such folder"):
        write_task_file(TASKS, tmp_path / "none" / "tasks.toml")
    path = tmp_path / "tasks.jsonl"
    path.write_text("old")

    def broken() -> object:
        yield TASKS[0]
        raise RuntimeError("the reader fails")

    with pytest.raises(RuntimeError):
        write_task_file(broken(), path)  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_toml_of_any_text_reads_back() -> None:
    table = {"plain": "a", "with space": 'quote " and \\', "ünicode": {"x y": [1, 2.5, True], "del": "\x7f\x1f"}}
    assert tomllib.loads(toml_table(table)) == table
    text = '\n first \n"""\\\r\n\\'
    assert tomllib.loads(f"text = {toml_text(text)}") == {"text": text}
    with pytest.raises(ValueError, match="no null"):
        toml_table({"a": [None]})
