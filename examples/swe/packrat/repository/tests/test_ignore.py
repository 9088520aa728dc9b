"""Patterns of .packignore."""

from packrat.snapshots import paths_below


def saved(notes, *patterns):
    (notes / ".packignore").write_text("\n".join(patterns) + "\n")
    return [path for path in paths_below(notes) if path != ".packignore"]


def test_a_name_anywhere(notes):
    assert saved(notes, "rome.*") == ["todo.txt"]


def test_a_folder(notes):
    assert saved(notes, "trips/") == ["todo.txt"]


def test_a_path_from_the_top(notes):
    (notes / "trips" / "old").mkdir()
    (notes / "trips" / "old" / "oslo.txt").write_text("")
    assert saved(notes, "trips/*.txt") == ["todo.txt", "trips/old/oslo.txt"]


def test_comments_and_empty_lines(notes):
    assert saved(notes, "# todo.txt", "", "rome.txt") == ["todo.txt"]


def test_a_folder_pattern_matches_no_file(notes):
    assert "todo.txt" in saved(notes, "todo.txt/")


def test_what_is_in_an_ignored_folder_is_not_saved(notes):
    assert saved(notes, "trips/", "!rome.txt") == ["todo.txt"]
