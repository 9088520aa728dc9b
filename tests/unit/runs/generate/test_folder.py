"""The folder of a generation: made once, continued later, used by one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.errors import PolarError
from polar.runs.generate.folder import STATE, GenerateFolder

TASKS = Path("tasks.toml")


def test_the_next_run_gets_the_same_run_folder(tmp_path: Path) -> None:
    folder = GenerateFolder(tmp_path / "set")
    with folder.open(TASKS) as first:
        assert first.root.is_dir() and first.root.is_absolute()
    with GenerateFolder(tmp_path / "set").open(Path("other.toml")) as second:
        assert second == first


def test_a_relative_folder_does_not_move_with_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with GenerateFolder(Path("set")).open(TASKS) as paths:
        assert paths.root.is_relative_to(tmp_path)


def test_a_second_process_is_refused_while_one_works(tmp_path: Path) -> None:
    with (
        GenerateFolder(tmp_path / "set").open(TASKS),
        pytest.raises(PolarError, match="wait until it has ended"),
        GenerateFolder(tmp_path / "set").open(TASKS),
    ):
        pytest.fail("two at once")


@pytest.mark.parametrize("name", ["mine.txt", "export.json"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(PolarError, match="choose another --out"), GenerateFolder(tmp_path).open(TASKS):
        pytest.fail("opened")


def test_an_empty_folder_will_do_and_a_file_will_not(tmp_path: Path) -> None:
    with GenerateFolder(tmp_path).open(TASKS):
        pass
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PolarError, match="is not a folder"), GenerateFolder(file).open(TASKS):
        pytest.fail("opened")


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("{}")
    with pytest.raises(PolarError, match=r"generate\.json is damaged"), GenerateFolder(tmp_path).open(TASKS):
        pytest.fail("opened")
