"""A folder to save, and a store."""

from pathlib import Path

import pytest

from packrat.snapshots import Store


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "trips").mkdir(parents=True)
    (folder / "todo.txt").write_text("buy milk\n")
    (folder / "trips" / "rome.txt").write_text("see the forum\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
