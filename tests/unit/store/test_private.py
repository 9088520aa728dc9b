"""Files that only their user may read, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.store.database import connect_sqlite
from polar.store.paths import RunPaths, write_whole
from polar.store.private import make_private, private_file, private_folder


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_its_new_parents_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "a" / "b")
    private_folder(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    assert mode_of(tmp_path) == 0o755, "it was there before"


def test_a_run_and_its_sessions_are_private(tmp_path: Path) -> None:
    run = RunPaths.create(tmp_path / "runs")
    session = run.session("one").create()
    made = (run.root.parent, run.root, run.sessions, session.root, session.logs)
    assert [mode_of(path) for path in made] == [0o700] * 5


def test_a_file_is_private_unless_its_user_asked_for_it(tmp_path: Path, umask: int) -> None:
    write_whole(tmp_path / "state", b"x")
    write_whole(tmp_path / "report", b"x", private=False)
    with open(tmp_path / "log", "ab", opener=private_file) as file:
        file.write(b"x")
    assert (mode_of(tmp_path / "state"), mode_of(tmp_path / "log")) == (0o600, 0o600)
    assert mode_of(tmp_path / "report") == 0o666 & ~umask


def test_a_database_and_its_log_are_private(tmp_path: Path) -> None:
    connection = connect_sqlite(tmp_path / "a.db")
    connection.execute("CREATE TABLE t (x)")
    assert {path.name: mode_of(path) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("a.db", "a.db-wal", "a.db-shm"), 0o600
    )
    connection.close()


def test_what_others_wrote_is_taken_from_everybody_else(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "logs"
    outside.touch()
    outside.chmod(0o644)
    (root / "closed" / "inner").mkdir(parents=True)
    for name, mode in (("tool", 0o755), ("closed/inner/text", 0o044)):
        (root / name).touch()
        (root / name).chmod(mode)
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to("nothing")
    (root / "closed").chmod(0o077)
    make_private(root)
    modes = [mode_of(root / name) for name in ("", "tool", "closed", "closed/inner", "closed/inner/text")]
    assert modes == [0o700, 0o700, 0o700, 0o700, 0o000]
    assert mode_of(outside) == 0o644, "links are not followed"
    make_private(root / "none")
