"""Logs and kept files of a session that travel with its result."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.store.paths import SessionPaths
from polar.store.session_files import read_files, write_files
from polar.types import SessionFile


@pytest.fixture
def paths(tmp_path: Path) -> SessionPaths:
    paths = SessionPaths(tmp_path / "word-0").create()
    (paths.logs / "harness.stdout").write_text("one\ntwo\n")
    (paths.artifacts / "out").mkdir(parents=True)
    (paths.artifacts / "out" / "big.bin").write_bytes(b"x" * 100)
    paths.patch.write_text("diff")
    return paths


def contents(files: tuple[SessionFile, ...]) -> dict[str, tuple[int, bytes]]:
    return {file.path: (file.size_bytes, file.content) for file in files}


def test_what_fits_travels_whole(paths: SessionPaths, tmp_path: Path) -> None:
    files = read_files(paths, 1000)
    assert contents(files) == {
        "artifacts/out/big.bin": (100, b"x" * 100),
        "logs/harness.stdout": (8, b"one\ntwo\n"),
        "patch.diff": (4, b"diff"),
    }
    assert write_files(files, tmp_path / "copy") == ()
    assert (tmp_path / "copy" / "logs" / "harness.stdout").read_text() == "one\ntwo\n"


def test_small_files_have_room_beside_a_large_one(paths: SessionPaths, tmp_path: Path) -> None:
    files = read_files(paths, 60)
    assert contents(files)["artifacts/out/big.bin"] == (100, b"")
    assert contents(files)["logs/harness.stdout"] == (8, b"one\ntwo\n")
    assert write_files(files, tmp_path / "copy") == ("artifacts/out/big.bin: none of its 100 bytes were uploaded",)


def test_of_a_long_log_the_end_travels(paths: SessionPaths, tmp_path: Path) -> None:
    (paths.logs / "harness.stdout").write_text("a" * 500 + "the end.")
    files = read_files(paths, 12)
    assert contents(files)["logs/harness.stdout"] == (508, b"the end.")
    assert "logs/harness.stdout: only the last 8 of its 508 bytes were uploaded" in write_files(files, tmp_path)


def test_links_are_not_followed_and_nothing_is_read_without_room(paths: SessionPaths, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (paths.logs / "link").symlink_to(tmp_path / "secret")
    assert "logs/link" not in contents(read_files(paths, 1000))
    assert read_files(paths, 0) == ()


@pytest.mark.parametrize("path", ["../outside", "/outside", "logs/../../outside", ""])
def test_a_path_that_leads_out_of_the_folder_is_not_written(tmp_path: Path, path: str) -> None:
    (told,) = write_files([SessionFile(path, 1, b"x")], tmp_path / "copy")
    assert "leads out of the folder" in told
    assert [found.name for found in tmp_path.rglob("*")] == []
