"""Parquet files and folders of data files are task files too."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from polar.data.row_files import data_files
from polar.data.task_selection import FieldFilter, TaskSelection
from polar.data.tasks import read_task_set
from polar.errors import ConfigError

PYARROW: Any = import_module("pyarrow")
PARQUET: Any = import_module("pyarrow.parquet")
CALC = Path(__file__).parents[3] / "examples" / "calc"
FIELDS = ("task_id", "instruction", "num_samples", "harness", "metadata")
ROWS: list[dict[str, Any]] = [
    dict(zip(FIELDS, ("a", "{x}", 2, "pi", {"repo": "o/a", "n": None}), strict=True)),
    dict(zip(FIELDS, ("b", "y", None, None, {"repo": "o/b", "n": 1}), strict=True)),
]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PARQUET.write_table(PYARROW.Table.from_pylist(rows), path)


def test_a_column_is_a_field_and_an_empty_cell_is_none(tmp_path: Path) -> None:
    write_parquet(tmp_path / "tasks.parquet", ROWS)
    first, second = read_task_set(tmp_path / "tasks.parquet").tasks
    assert (first.task_id, first.instruction, first.num_samples) == ("a", "{x}", 2)
    assert (second.num_samples, second.harness.name, second.metadata) == (1, "pi", {"repo": "o/b", "n": 1})
    assert first.metadata == {"repo": "o/a"}
    chosen = TaskSelection(filters=(FieldFilter.parse("metadata.repo=o/b"),)).chosen([first, second])
    assert chosen == [second]


def test_tables_may_be_json_text(tmp_path: Path) -> None:
    harness = json.dumps({"name": "shell", "options": {"command": "true"}})
    write_parquet(tmp_path / "t.parquet", [{"instruction": "x", "harness": harness, "prepare": '["true"]'}])
    (task,) = read_task_set(tmp_path / "t.parquet").tasks
    assert (task.task_id, task.harness.options, task.prepare[0].run) == ("task-0001", {"command": "true"}, "true")


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", [{"instruction": "x"}, {"instruction": None}])
    with pytest.raises(ConfigError, match=r"t\.parquet, row 2: instruction: missing"):
        read_task_set(tmp_path / "t.parquet")
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(ConfigError, match="cannot be read as parquet"):
        read_task_set(tmp_path / "no.parquet")


def test_a_folder_of_a_data_set(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:1])
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[1:])
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.parquet").write_text("no")
    assert [task.task_id for task in read_task_set(tmp_path).tasks] == ["a", "b"]


def test_the_split_has_to_be_clear(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("{}\n")
    with pytest.raises(ConfigError, match="it has the splits test, train: choose one"):
        data_files(tmp_path)
    assert [path.name for path in data_files(tmp_path, "test")] == ["test.jsonl"]
    with pytest.raises(ConfigError, match="no split 'dev'; it has test, train"):
        data_files(tmp_path, "dev")


def test_a_folder_without_rows_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no parquet, JSONL or JSON file in it$"):
        data_files(tmp_path)
    (tmp_path / "data.arrow").touch()
    with pytest.raises(ConfigError, match="to_parquet"):
        data_files(tmp_path)


def test_the_rows_of_a_swe_set_may_be_a_folder_with_splits(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = (CALC / "rows.jsonl").read_text()
    (tmp_path / "set" / "test.jsonl").write_text(rows)
    (tmp_path / "set" / "train.jsonl").write_text(rows)
    table = f'[swe]\nrows = "set"\nsplit = "test"\nrepositories = "{CALC}"\n'
    (tmp_path / "tasks.toml").write_text(table)
    (task,) = read_task_set(tmp_path / "tasks.toml").tasks
    assert task.evaluator.name == "swe_bench"


def test_a_parquet_file_of_swe_rows_is_a_swe_set(tmp_path: Path) -> None:
    row = json.loads((CALC / "rows.jsonl").read_text().splitlines()[0])
    write_parquet(tmp_path / "rows.parquet", [row | {"image": "calc:1"}])
    (task,) = read_task_set(tmp_path / "rows.parquet").tasks
    assert (task.runtime.name, task.runtime.options["image"]) == ("docker", "calc:1")
