"""Saving and restoring."""

import pytest

from packrat.changes import changes
from packrat.errors import PackratError


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_snapshot_has_all_files(store, notes):
    assert sorted(store.save(notes).files) == ["todo.txt", "trips/rome.txt"]


def test_restored_files_are_the_same(store, notes, tmp_path):
    store.restore(store.save(notes), tmp_path / "again")
    assert tree(tmp_path / "again") == tree(notes)


def test_numbers_go_up(store, notes):
    assert [store.save(notes).number for _ in range(3)] == [1, 2, 3]
    assert store.numbers() == [1, 2, 3]


def test_equal_contents_are_stored_once(store, notes):
    (notes / "copy.txt").write_text("buy milk\n")
    store.save(notes)
    assert len(list(store.contents.digests())) == 2


def test_latest(store, notes):
    store.save(notes, "first")
    store.save(notes, "second")
    assert store.read("latest").message == "second"


def test_an_unknown_snapshot(store, notes):
    store.save(notes)
    with pytest.raises(PackratError, match="no snapshot 9"):
        store.read("9")


def test_a_folder_with_files_is_not_restored_to(store, notes):
    with pytest.raises(PackratError, match="not an empty folder"):
        store.restore(store.save(notes), notes)


def test_changes(store, notes):
    before = store.save(notes)
    (notes / "todo.txt").write_text("buy bread\n")
    (notes / "trips" / "rome.txt").unlink()
    (notes / "new.txt").write_text("")
    assert list(changes(before, store.save(notes))) == ["+ new.txt", "~ todo.txt", "- trips/rome.txt"]


def test_prune_keeps_the_last(store, notes):
    for _ in range(4):
        store.save(notes)
    store.prune(1)
    assert store.numbers() == [4]


def test_prune_removes_contents_that_nobody_needs(store, notes):
    old = store.save(notes).files["todo.txt"].digest
    (notes / "todo.txt").write_text("buy bread\n")
    store.save(notes)
    store.prune(1)
    assert old not in store.contents.digests()


def test_a_damaged_content_is_a_problem(store, notes):
    digest = store.save(notes).files["todo.txt"].digest
    (store.contents._folder / digest[:2] / digest[2:]).write_text("other")
    assert [line.partition(":")[0] for line in store.problems()] == ["todo.txt"]
