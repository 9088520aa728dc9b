"""Files in a folder that another process is changing: nothing outside is read or written."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.files.copies import copy_out
from polar.runtimes.files.safe_paths import held_inside, read_inside, write_inside

HERE, EXCHANGE = -100, 2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="openat2 is Linux's")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("the node's")
    return tmp_path / "work"


def test_a_file_is_written_with_its_folders_and_read_again(base: Path) -> None:
    write_inside(base, "a/b/file", b"text", 0o640)
    assert read_inside(base, "a/b/file") == b"text"
    assert (base / "a/b/file").stat().st_mode & 0o777 == 0o640


def test_links_that_stay_inside_are_followed(base: Path) -> None:
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    write_inside(base, "link/file", b"text", 0o644)
    assert (base / "real" / "file").read_bytes() == read_inside(base, "link/file") == b"text"
    with held_inside(base, "link/file") as held:
        assert held.read_bytes() == b"text"


@pytest.mark.parametrize("to", ["../outside", "/", "../../../../../../../.."])
def test_links_that_lead_outside_are_refused(base: Path, to: str) -> None:
    (base / "link").symlink_to(to)
    with pytest.raises(RuntimeFailure, match="leads out of its folder"):
        write_inside(base, "link/new", b"text", 0o644)
    with pytest.raises(RuntimeFailure, match="leads out of its folder"):
        read_inside(base, "link/file")
    with pytest.raises(RuntimeFailure, match="leads out of its folder"), held_inside(base, "link"):
        pass
    assert not (base.parent / "outside" / "new").exists()


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a\0b", "../outside/file"])
def test_paths_that_are_not_below_are_refused(base: Path, path: str) -> None:
    with pytest.raises(RuntimeFailure):
        read_inside(base, path)


def test_what_is_not_there_is_not_found(base: Path) -> None:
    (base / "plain").write_text("")
    for path in ("nothing", "plain/below"):
        with pytest.raises(FileNotFoundError):
            read_inside(base, path)
        with pytest.raises(FileNotFoundError), held_inside(base, path):
            pass


def test_pipes_are_neither_read_nor_waited_at(base: Path) -> None:
    os.mkfifo(base / "pipe")
    (base / "folder").mkdir()
    for path in ("pipe", "folder"):
        with pytest.raises(FileNotFoundError, match="is not a file"):
            read_inside(base, path)
    write_inside(base, "pipe", b"text", 0o644)
    assert (base / "pipe").read_bytes() == b"text"


def test_a_folder_is_not_overwritten(base: Path) -> None:
    (base / "folder").mkdir()
    with pytest.raises(RuntimeFailure, match="cannot write 'folder'"):
        write_inside(base, "folder", b"text", 0o644)


@contextlib.contextmanager
def swapping(base: Path) -> Generator[None]:
    """A folder that turns into a link to the outside and back, all the time."""
    (base / "spot").mkdir()
    (base / "spot" / "file").write_text("the session's")
    (base / "trap").symlink_to(base.parent / "outside")
    over = threading.Event()

    def swap() -> None:
        names = (os.fsencode(base / "spot"), os.fsencode(base / "trap"))
        libc = ctypes.CDLL(None)
        while not over.is_set():
            assert libc.renameat2(HERE, names[0], HERE, names[1], EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_swapped_folder_gives_nothing_of_the_node_away(base: Path, tmp_path: Path) -> None:
    seen: set[bytes] = set()
    with swapping(base):
        for number in range(1500):
            with contextlib.suppress(RuntimeFailure, OSError):
                seen.add(read_inside(base, "spot/file"))
            with contextlib.suppress(RuntimeFailure, OSError):
                write_inside(base, "spot/new", b"written", 0o644)
            with contextlib.suppress(RuntimeFailure, OSError), held_inside(base, "spot") as held:
                copy_out(held, tmp_path / f"out-{number}", cap_bytes=1000)
    assert seen == {b"the session's"}
    assert not (base.parent / "outside" / "new").exists()
    copied = [path.read_text() for path in tmp_path.glob("out-*/file")]
    assert set(copied) == {"the session's"}
