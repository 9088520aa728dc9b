"""Copies out of a session, which do not trust its files, and copies over what a session left."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.files import copies
from polar.runtimes.files.copies import CopyCancelled, copied_out, copy_in, copy_out, printable
from polar.runtimes.files.folders import read_file, remove_tree, write_file
from waiting import HANG_S

NOBODY = 65534
PLENTY = 2**20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The target of a copy; it does not exist yet."""
    return tmp_path / "kept" / "here"


def deepen(folder: Path, levels: int) -> None:
    """Folders nested deeper than a path can name."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


class TestOut:
    def test_files_folders_and_their_execute_bits(self, work: Path, kept: Path) -> None:
        (work / "sub" / "empty").mkdir(parents=True)
        (work / "sub" / "run.sh").write_text("#!/bin/sh\n")
        (work / "sub" / "run.sh").chmod(0o4711)
        (work / "data.bin").write_bytes(bytes(range(256)))
        (work / "data.bin").chmod(0o600)

        fetched = copy_out(work, kept, PLENTY)

        assert (fetched.files, fetched.size_bytes, fetched.left_out) == (2, 10 + 256, ())
        assert (kept / "data.bin").read_bytes() == bytes(range(256))
        assert (kept / "sub" / "empty").is_dir()
        assert (kept / "data.bin").stat().st_mode & 0o7777 == 0o644
        assert (kept / "sub" / "run.sh").stat().st_mode & 0o7777 == 0o755, "no bit that gives privileges"

    def test_one_file(self, work: Path, kept: Path) -> None:
        (work / "answer").write_text("42")
        assert copy_out(work / "answer", kept, PLENTY).files == 1
        assert kept.read_text() == "42"

    def test_what_is_not_there(self, work: Path, kept: Path) -> None:
        with pytest.raises(FileNotFoundError, match="there is no 'answer'"):
            copy_out(work / "answer", kept, PLENTY)
        assert not kept.exists()

    def test_the_cap_is_of_all_together_and_smaller_files_still_fit(self, work: Path, kept: Path) -> None:
        for name, size in (("a", 60), ("b", 60), ("c", 40)):
            (work / name).write_bytes(b"x" * size)
        fetched = copy_out(work, kept, 100)
        assert (fetched.size_bytes, fetched.left_out) == (100, ("b: 60 bytes are over the cap",))
        assert sorted(os.listdir(kept)) == ["a", "c"]

    def test_a_file_that_is_all_holes_counts_by_its_length(self, work: Path, kept: Path) -> None:
        with (work / "huge").open("wb") as file:
            file.truncate(2**40)
        assert copy_out(work, kept, PLENTY).left_out == (f"huge: {2**40} bytes are over the cap",)

    def test_pipes_and_sockets_stay(self, work: Path, kept: Path) -> None:
        os.mkfifo(work / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(work / "socket"))
            fetched = copy_out(work, kept, PLENTY)
        assert fetched.left_out == ("pipe: not a plain file", "socket: not a plain file")
        assert os.listdir(kept) == []

    def test_names_of_any_bytes_are_copied_and_shown_as_text(self, work: Path, kept: Path) -> None:
        names = [b"a\nb", b"\xff\xfe", b"-rf", b" ", b"\xc3\xa9"]
        for name in names:
            (work / os.fsdecode(name)).write_bytes(b"12")
        assert copy_out(work, kept, PLENTY).files == len(names)
        assert sorted(os.listdir(os.fsencode(kept))) == sorted(names)
        left_out = copy_out(work, kept.with_name("again"), 0).left_out
        assert "\\xff\\xfe: 2 bytes are over the cap" in left_out
        assert all(line.encode() for line in left_out), "nothing that UTF-8 cannot spell"

    def test_a_tree_without_end(self, work: Path, kept: Path) -> None:
        (work / "d").mkdir()
        deepen(work / "d", 3000)
        (work / "e").write_text("")
        fetched = copy_out(work, kept, PLENTY)
        assert fetched.files == 1, "its neighbour is not lost"
        assert len(fetched.left_out) == 1 and fetched.left_out[0].endswith("deeper than 100 folders")
        remove_tree(work / "d")

    def test_names_longer_than_a_path_may_be(self, work: Path, kept: Path) -> None:
        here = os.open(work, os.O_RDONLY)
        for _ in range(30):
            os.mkdir("n" * 250, dir_fd=here)
            below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        fetched = copy_out(work, kept, PLENTY)
        assert len(fetched.left_out) == 1 and fetched.left_out[0].endswith("...: file name too long")
        remove_tree(work)

    def test_more_files_than_are_taken(self, work: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copies, "MAX_ENTRIES", 10)
        (work / "many").mkdir()
        for number in range(50):
            (work / "many" / f"{number:02}").touch()
        (work / "zz").touch()
        fetched = copy_out(work, kept, PLENTY)
        assert fetched.files == 8, "the two folders count as well"
        assert fetched.left_out == (
            "many: too many files; the rest is missing",
            "here: too many files; the rest is missing",
        )

    def test_not_every_loss_is_named(self, work: Path, kept: Path) -> None:
        for number in range(130):
            os.mkfifo(work / f"{number:03}")
        left_out = copy_out(work, kept, PLENTY).left_out
        assert len(left_out) == 101 and left_out[-1] == "and 30 more"


class TestLinksOut:
    def test_those_that_stay_inside_are_kept_as_links(self, work: Path, kept: Path) -> None:
        (work / "sub").mkdir()
        (work / "file").write_text("x")
        (work / "sub" / "up").symlink_to("../file")
        (work / "chain").symlink_to("sub/../sub/up")
        (work / "nowhere").symlink_to("sub/missing")
        (work / "itself").symlink_to("itself/x")
        fetched = copy_out(work, kept, PLENTY)
        assert fetched.left_out == ("itself: a link that leads outside",), "a circle leads nowhere one could look"
        assert (kept / "sub" / "up").readlink() == Path("../file")
        assert (kept / "chain").read_text() == "x"
        assert (kept / "nowhere").is_symlink()

    @pytest.mark.parametrize("to", ["/etc/passwd", "../secret", "..", "sub/../../secret", "sub/out/secret"])
    def test_those_that_leave_are_not(self, work: Path, kept: Path, to: str) -> None:
        (kept.parent).mkdir()
        (kept.parent / "secret").write_text("of the node")
        (work / "sub").mkdir()
        (work / "sub" / "out").symlink_to("../..")
        (work / "link").symlink_to(to)
        fetched = copy_out(work, kept, PLENTY)
        assert "link: a link that leads outside" in fetched.left_out
        assert "sub/out: a link that leads outside" in fetched.left_out
        assert not os.path.lexists(kept / "link")

    def test_a_link_to_the_folder_itself_is_inside(self, work: Path, kept: Path) -> None:
        (work / "sub").mkdir()
        (work / "sub" / "top").symlink_to("..")
        assert copy_out(work, kept, PLENTY).left_out == ()

    def test_a_link_is_not_followed_where_the_copy_begins(self, work: Path, kept: Path) -> None:
        (work.parent / "outside").mkdir()
        (work / "link").symlink_to(work.parent / "outside")
        assert copy_out(work / "link", kept, PLENTY).left_out == ("here: a link that leads outside",)
        assert not os.path.lexists(kept)

    def test_long_chains_cost_little(self, work: Path, kept: Path) -> None:
        (work / "0").write_text("")
        for number in range(1, 2000):
            (work / str(number)).symlink_to(str(number - 1))
        fetched = copy_out(work, kept, PLENTY)
        assert (kept / "5").is_symlink() and not os.path.lexists(kept / "1999")
        assert len(fetched.left_out) == 101


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """Root may read everything, so a test that runs as root switches to an ordinary user."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    os.seteuid(os.getuid())
    remove_tree(folder)


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENOSPC])
def test_a_node_that_runs_short_fails_the_copy_and_leaves_no_half_of_it(
    work: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    """Without one of its files, the agent's work would be judged as wrong."""
    (work / "a.txt").write_text("copied")
    (work / "b.txt").write_text("not copied")
    truly = os.open

    def short(path: str, *arguments: Any, **options: Any) -> int:
        if path == "b.txt":
            raise OSError(problem, os.strerror(problem))
        return truly(path, *arguments, **options)

    monkeypatch.setattr(os, "open", short)
    with pytest.raises(OSError, match=os.strerror(problem)):
        copy_out(work, kept, PLENTY)
    assert not kept.exists()


def test_what_cannot_be_read_is_listed(folder_of_nobody: Path) -> None:
    work, kept = folder_of_nobody / "work", folder_of_nobody / "kept"
    (work / "closed").mkdir(parents=True)
    (work / "secret").write_text("x")
    (work / "open").write_text("x")
    (work / "closed").chmod(0)
    (work / "secret").chmod(0)
    assert copy_out(work, kept, PLENTY).left_out == ("closed: permission denied", "secret: permission denied")
    assert os.listdir(kept) == ["open"]


class TestIn:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        folder = tmp_path / "source"
        (folder / "tests").mkdir(parents=True)
        (folder / "tests" / "check.sh").write_text("true\n")
        (folder / "tests" / "check.sh").chmod(0o755)
        (folder / "latest").symlink_to("/somewhere/else")
        return folder

    def test_links_modes_and_times_are_kept(self, source: Path, work: Path) -> None:
        os.utime(source / "tests" / "check.sh", (10**9, 10**9))
        (source / "tests").chmod(0o555)
        copy_in(source, work / "new" / "place")
        copied = work / "new" / "place" / "tests" / "check.sh"
        assert copied.stat().st_mtime == 10**9 and copied.stat().st_mode & 0o777 == 0o755
        assert copied.parent.stat().st_mode & 0o777 == 0o555
        assert (work / "new" / "place" / "latest").readlink() == Path("/somewhere/else")
        (source / "tests").chmod(0o755)

    def test_a_folder_that_stands_keeps_its_mode_and_its_other_files(self, source: Path, work: Path) -> None:
        source.chmod(0o555)
        work.chmod(0o700)
        (work / "mine").write_text("x")
        copy_in(source, work)
        assert work.stat().st_mode & 0o777 == 0o700, "a read-only source leaves the workspace writable"
        assert sorted(os.listdir(work)) == ["latest", "mine", "tests"]
        source.chmod(0o755)

    def test_nothing_is_written_through_a_link(self, source: Path, work: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("untouched")
        (work / "tests").symlink_to(outside)
        copy_in(source, work)
        assert os.listdir(outside) == ["file"]
        assert not (work / "tests").is_symlink()

        (work / "tests" / "check.sh").unlink()
        (work / "tests" / "check.sh").symlink_to(outside / "file")
        copy_in(source, work)
        assert (outside / "file").read_text() == "untouched"
        assert (work / "tests" / "check.sh").read_text() == "true\n"

    def test_what_stands_in_the_way_gives_way(self, source: Path, work: Path) -> None:
        (work / "tests" / "check.sh" / "deep").mkdir(parents=True)
        os.mkfifo(work / "latest")
        copy_in(source, work)
        assert (work / "tests" / "check.sh").read_text() == "true\n"
        assert (work / "latest").is_symlink()

    def test_a_pipe_of_the_source_stays_behind(self, source: Path, work: Path) -> None:
        os.mkfifo(source / "pipe")
        copy_in(source, work)
        assert sorted(os.listdir(work)) == ["latest", "tests"]

    def test_a_source_that_is_no_folder(self, source: Path, work: Path) -> None:
        with pytest.raises(RuntimeFailure, match="is not a folder"):
            copy_in(source / "tests" / "check.sh", work)


class Gate(Event):
    """Copies two entries, then blocks until the copy is cancelled."""

    passed = 0

    def is_set(self) -> bool:
        self.passed += 1
        return self.passed > 2 and self.wait(timeout=HANG_S)


async def test_a_cancelled_copy_is_over_and_leaves_nothing(
    work: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "Event", Gate)
    for name in ("a", "b", "c"):
        (work / name).write_text(name)
    copying = asyncio.create_task(copied_out(work, kept, PLENTY))
    while not (kept / "a").exists():  # noqa: ASYNC110 - a thread makes it
        await asyncio.sleep(0.01)

    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying

    assert not kept.exists()


def test_a_tree_is_laid_in_no_further_when_broken_off(work: Path, kept: Path) -> None:
    for name in ("a", "b", "c"):
        (work / name).write_text(name)
    gate = Gate()
    gate.set()

    with pytest.raises(CopyCancelled):
        copy_in(work, kept, gate)

    assert len(list(kept.iterdir())) == 2


def test_a_long_name_is_cut() -> None:
    assert printable("x" * 1000) == "x" * 300 + "..."


def test_a_file_is_written_in_place_of_a_pipe(work: Path) -> None:
    os.mkfifo(work / "answer")
    write_file(work / "answer", b"42", 0o644)
    assert read_file(work / "answer") == b"42"


def test_a_file_of_any_length_is_not_read(work: Path) -> None:
    with (work / "huge").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RuntimeFailure, match=r"'huge' has \d+ bytes; at most"):
        read_file(work / "huge")
