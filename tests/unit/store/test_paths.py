"""A run's folder: its layout, its record, and how it is found again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polar.config import Config
from polar.errors import PolarError
from polar.store.paths import RunNotFound, RunPaths, RunRecord, find_run, list_runs, new_run_id, write_whole
from polar.types import is_id


def a_run(runs_dir: Path, run_id: str) -> RunPaths:
    run = RunPaths.create(runs_dir, run_id)
    run.write_record(RunRecord(run_id=run_id, config=Config(), versions={}, started=1.0))
    return run


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    run = RunPaths.create(tmp_path / "runs", "r1")
    session = run.session("add-0").create()
    assert run.record == tmp_path / "runs/r1/run.json"
    assert run.journal == tmp_path / "runs/r1/journal.db"
    assert session.place == tmp_path / "runs/r1/sessions/add-0/place"
    assert session.traces == tmp_path / "runs/r1/sessions/add-0/traces.msgpack"
    assert session.logs.is_dir()
    assert not session.place.exists()


def test_run_ids_are_readable_valid_and_sort_by_time() -> None:
    at = 1_794_719_553.0
    assert new_run_id(at).startswith("20261115-051233-")
    ids = [new_run_id(at + second) for second in (0, 1, 59, 60, 3600, 86_400, 40_000_000)]
    assert ids == sorted(ids)
    assert all(is_id(run_id) for run_id in ids)


def test_a_run_without_a_given_id_is_named_after_now(tmp_path: Path) -> None:
    run = RunPaths.create(tmp_path)
    assert run.run_id[:6] == time.strftime("%Y%m", time.gmtime())


@pytest.mark.parametrize("bad", ["..", "../up", "a/b", ".hidden", "a b", "x" * 129, "a\n", "-x"])
def test_an_id_that_could_leave_the_folder_is_refused(tmp_path: Path, bad: str) -> None:
    run = RunPaths.create(tmp_path, "r1")
    for use in (lambda: RunPaths.create(tmp_path, bad), lambda: run.session(bad)):
        with pytest.raises(PolarError, match="is not a valid id"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["r1"]


def test_a_run_is_made_once(tmp_path: Path) -> None:
    RunPaths.create(tmp_path, "r1")
    with pytest.raises(PolarError, match="already exists"):
        RunPaths.create(tmp_path, "r1")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolarError, match="cannot create"):
        RunPaths.create(tmp_path / "file", "r1")


def test_the_record_comes_back(tmp_path: Path) -> None:
    run = RunPaths.create(tmp_path, "r1")
    record = RunRecord(run_id="r1", config=Config(), versions={"polar": "0.1"}, tasks=3, started=1.5)
    run.write_record(record)
    run.write_record(record.model_copy(update={"finished": 2.5}))
    assert run.read_record() == record.model_copy(update={"finished": 2.5})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"run_id": "r1", "new_field": 1}', b"\xff\xfe"])
def test_a_damaged_record_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    run = RunPaths.create(tmp_path, "r1")
    run.record.write_bytes(content)
    with pytest.raises(PolarError, match=r"run\.json"):
        run.read_record()


def test_a_missing_record_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PolarError, match="cannot read"):
        RunPaths(tmp_path).read_record()


def test_a_run_is_found_by_id_by_beginning_or_as_the_latest(tmp_path: Path) -> None:
    for run_id in ("20260101-000000-aa", "20260102-000000-bb", "20260102-000000-bbcc"):
        a_run(tmp_path, run_id)
    assert find_run(tmp_path, None).run_id == "20260102-000000-bbcc"
    assert find_run(tmp_path, "20260101").run_id == "20260101-000000-aa"
    assert find_run(tmp_path, "20260102-000000-bb").run_id == "20260102-000000-bb"


def test_what_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    for day in range(1, 14):
        a_run(tmp_path, f"202601{day:02}")
    with pytest.raises(RunNotFound, match=r"no run 'x' .* 20260113 and 3 older"):
        find_run(tmp_path, "x")
    with pytest.raises(RunNotFound, match=r"4 runs begin with '2026011'.* 20260110, 20260111"):
        find_run(tmp_path, "2026011")


def test_a_folder_without_runs_says_how_to_get_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunNotFound, match="polar run"):
            find_run(folder)


def test_runs_are_listed_by_their_time_whatever_their_names_begin_with(tmp_path: Path) -> None:
    """The folder of a node is named `gateway-TIME`."""
    names = ["20261116-180000-aaaa", "gateway-20261116-183610-bbbb", "20261116-183826-cccc", "mine"]
    for name in reversed(names):
        a_run(tmp_path, name)
    assert [run.run_id for run in list_runs(tmp_path)] == names
    assert find_run(tmp_path).run_id == "mine", "its record is the newest"


def test_what_is_no_run_is_not_listed(tmp_path: Path) -> None:
    a_run(tmp_path, "r1")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".trash").mkdir()
    (tmp_path / "file.txt").write_text("")
    assert [run.run_id for run in list_runs(tmp_path)] == ["r1"]


def test_a_write_that_fails_leaves_the_old_file_and_no_scrap(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
