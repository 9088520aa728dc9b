"""Solutions come from the files of a task set, never from its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.data.solutions import GOLD, solutions_of
from polar.data.tasks import read_task_set
from polar.errors import ConfigError
from polar.types import TaskRequest

EXAMPLES = Path(__file__).parents[3] / "examples"
PLAIN = [TaskRequest(task_id="a", instruction="x"), TaskRequest(task_id="b", instruction="x")]


def test_a_harbor_folder_has_its_own() -> None:
    path = EXAMPLES / "harbor.toml"
    found = solutions_of(path, read_task_set(path).tasks)
    assert list(found) == ["word-count"] and "solve.sh" in found["word-count"].files


def test_a_row_has_its_gold_patch_and_its_task_does_not() -> None:
    path = EXAMPLES / "swe.toml"
    tasks = read_task_set(path).tasks
    (solution,) = solutions_of(path, tasks).values()
    patch = solution.files[GOLD].decode()
    added = next(line[1:].strip() for line in patch.splitlines() if line.startswith("+") and line[1:2] == " ")
    assert added not in tasks[0].model_dump_json()


def test_a_folder_has_them_by_task_id(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("true\n")
    (tmp_path / "b.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2")
    found = solutions_of(tmp_path / "tasks.jsonl", PLAIN, tmp_path)
    assert found["a"].files == {"solve.sh": b"true\n"}
    assert found["b"].files[GOLD].endswith(b"+2\n")
    assert solutions_of(tmp_path / "tasks.jsonl", PLAIN) == {}
    with pytest.raises(ConfigError, match="not a folder"):
        solutions_of(tmp_path / "tasks.jsonl", PLAIN, tmp_path / "none")
