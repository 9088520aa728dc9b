"""Workspaces in task files: their paths are found from the file, and what is kept is merged with the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.data.tasks import read_tasks
from polar.errors import ConfigError


def tasks_file(folder: Path, text: str) -> Path:
    path = folder / "tasks.toml"
    path.write_text(text)
    return path


def test_relative_paths_are_of_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sets").mkdir()
    tasks_file(
        tmp_path / "sets",
        """
        tasks = [
            { instruction = "a", workspace = { git = "../repository", ref = "v1" } },
            { instruction = "b", workspace = { folder = "/srv/base" } },
            { instruction = "c" },
        ]
        """,
    )
    monkeypatch.chdir(tmp_path)
    first, second, third = read_tasks(Path("sets/tasks.toml"))
    assert first.workspace and first.workspace.git == str(tmp_path / "sets" / ".." / "repository")
    assert (first.workspace.folder, first.workspace.ref) == (None, "v1")
    assert second.workspace and second.workspace.folder == "/srv/base"
    assert third.workspace is None


def test_defaults_of_what_is_kept_are_merged(tmp_path: Path) -> None:
    path = tasks_file(
        tmp_path,
        """
        defaults = { keep = { patch = true, cap_bytes = "2MiB" } }
        tasks = [{ instruction = "a", keep = { artifacts = ["out"] } }]
        """,
    )
    (task,) = read_tasks(path)
    assert (task.keep.patch, task.keep.artifacts, task.keep.cap_bytes) == (True, ("out",), 2 * 2**20)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('workspace = { folder = "a", git = "b" }', "workspace: .*give either folder or git"),
        ("workspace = {}", "workspace: .*give either folder or git"),
        ('keep = { artifacts = ["../x"] }', "keep.artifacts.0: .*relative path inside the workspace"),
        ('keep = { artifacts = ["x", "x/y"] }', "keep: .*'x/y' is already part of 'x'"),
        ('prepare = [{ command = "make" }]', "prepare.0.run: missing"),
        ('prepare = [{ run = "make", retries = 100 }]', "prepare.0.retries: .*less than or equal to 20"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(tmp_path: Path, field: str, message: str) -> None:
    path = tasks_file(tmp_path, f'[[tasks]]\ninstruction = "a"\n{field}\n')
    with pytest.raises(ConfigError, match=message):
        read_tasks(path)
