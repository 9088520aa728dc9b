"""Removal copes with what agents leave behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.runtimes.files.folders import remove_tree

NOBODY = 65534


def awkward_tree(root: Path) -> None:
    (root / "closed" / "below").mkdir(parents=True)
    (root / "read-only").mkdir()
    (root / "read-only" / "file").write_text("x")
    (root / "read-only" / "file").chmod(0o400)
    (root / "read-only").chmod(0o500)
    (root / "closed").chmod(0)


def test_removes_closed_and_read_only_folders(tmp_path: Path) -> None:
    awkward_tree(tmp_path / "root")
    remove_tree(tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.fixture
def folder_without_privileges() -> Iterator[Path]:
    """Root may do everything, so a test that runs as root switches to an ordinary user."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


def test_removes_them_without_being_root(folder_without_privileges: Path) -> None:
    awkward_tree(folder_without_privileges / "root")
    remove_tree(folder_without_privileges / "root")
    assert list(folder_without_privileges.iterdir()) == []


def test_removes_what_is_too_deep_for_recursion(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "root")
    assert (tmp_path / "outside" / "kept").exists()


def test_nothing_to_remove_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
