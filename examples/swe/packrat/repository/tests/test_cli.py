"""The commands."""

from packrat.cli import main, shortened


def test_save_and_list(notes, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    assert main([*store, "save", str(notes), "-m", "first"]) == 0
    assert capsys.readouterr().out == "snapshot 1: 2 files\n"
    assert main([*store, "list"]) == 0
    assert "2 files  first" in capsys.readouterr().out


def test_diff(notes, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    main([*store, "save", str(notes)])
    (notes / "b.txt").write_text("b")
    main([*store, "save", str(notes)])
    capsys.readouterr()
    assert main([*store, "diff", "1", "latest"]) == 0
    assert capsys.readouterr().out == "+ b.txt\n"


def test_a_missing_folder_is_a_message(tmp_path, capsys):
    assert main(["--store", str(tmp_path / "store"), "save", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_sound_store_verifies(notes, tmp_path):
    store = ["--store", str(tmp_path / "store")]
    main([*store, "save", str(notes)])
    assert main([*store, "verify"]) == 0


def test_only_the_first_line_of_a_message_is_shown():
    assert shortened("first\nsecond", 20) == "first"
