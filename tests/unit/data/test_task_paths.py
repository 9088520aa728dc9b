"""Paths of a task file are relative to it."""

from __future__ import annotations

from pathlib import Path

from polar.data.tasks import read_tasks

TASKS = """
[[tasks]]
instruction = "x"
harness = { name = "shell", options = { command = "true" } }
runtime = { name = "docker", options = { build = { context = "image" }, mounts = [
    { source = "data", target = "/data" }, { source = "/abs", target = "/abs" } ] } }

[[tasks]]
instruction = "y"
harness = { name = "shell", options = { command = "true" } }
runtime = { name = "docker", options = { image = "x" } }
"""


def test_contexts_and_mounts_become_absolute_and_other_options_stay(tmp_path: Path) -> None:
    (tmp_path / "tasks.toml").write_text(TASKS)
    first, second = read_tasks(tmp_path / "tasks.toml")
    assert first.runtime.options["build"]["context"] == str(tmp_path / "image")
    assert [mount["source"] for mount in first.runtime.options["mounts"]] == [str(tmp_path / "data"), "/abs"]
    assert second.runtime.options == {"image": "x"}
