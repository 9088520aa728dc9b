"""Tars from a container are written by an agent: none makes the node write outside its target."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.base import Fetched
from polar.runtimes.docker.archive import Owner, StreamTooLong, pack, unpack


class Cut(io.BytesIO):
    """A stream that raises StreamTooLong after its limit."""

    def __init__(self, content: bytes, limit_bytes: int) -> None:
        super().__init__(content)
        self._limit_bytes = limit_bytes

    def readinto(self, buffer: bytearray, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.tell() >= self._limit_bytes:
            raise StreamTooLong
        piece = self.read(min(len(buffer), 512))
        buffer[: len(piece)] = piece
        return len(piece)


def tar_of(*entries: tuple[str, bytes, str | bytes]) -> bytes:
    """Each a name, a type, and a content or a target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, what in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if isinstance(what, str):
                entry.linkname = what
                tar.addfile(entry)
            else:
                entry.size = len(what)
                tar.addfile(entry, io.BytesIO(what))
    return packed.getvalue()


def unpacked(content: bytes, folder: Path, cap_bytes: int = 1000, limit_bytes: int = 2**30) -> Fetched:
    scratch = folder / "scratch"
    scratch.mkdir()
    return unpack(lambda _: Cut(content, limit_bytes), scratch, folder / "out", cap_bytes)  # pyright: ignore[reportArgumentType]


FOLDER, FILE, LINK, HARD = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def test_a_folder_becomes_the_target(tmp_path: Path) -> None:
    content = tar_of(
        ("work", FOLDER, b""), ("work/a", FILE, b"1"), ("work/b", HARD, "work/a"), ("work/l", LINK, "a")
    )
    fetched = unpacked(content, tmp_path)
    assert (tmp_path / "out" / "b").read_bytes() == b"1"
    assert os.readlink(tmp_path / "out" / "l") == "a"
    assert fetched == Fetched(files=2, size_bytes=2)


def test_a_folder_swapped_for_a_link_while_it_was_read_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    content = tar_of(("work/d", LINK, str(outside)), ("work/d/x", FILE, b"1"), ("work/d/y", HARD, "work/d/x"))
    fetched = unpacked(content, tmp_path)
    assert list(outside.iterdir()) == []
    assert fetched.left_out == ("d: File exists",)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "work/../../x"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    for content in (tar_of((name, FILE, b"1")), tar_of(("work/a", HARD, name))):
        with pytest.raises(RuntimeFailure, match="tar with"):
            unpacked(content, tmp_path)
        (tmp_path / "scratch").rmdir()
    assert not (tmp_path / "x").exists()


def test_what_is_over_the_cap_is_left_out_with_all_its_names(tmp_path: Path) -> None:
    content = tar_of(
        ("work/a", FILE, b"x" * 600),
        ("work/b", FILE, b"x" * 600),
        ("work/c", HARD, "work/b"),
        ("work/d", FILE, b"1"),
    )
    fetched = unpacked(content, tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a", "d"]
    assert fetched.left_out == ("b: 600 bytes are over the cap", "c: No such file or directory")


def test_devices_stay_behind(tmp_path: Path) -> None:
    fetched = unpacked(tar_of(("work", FOLDER, b""), ("work/sda", tarfile.BLKTYPE, "")), tmp_path)
    assert fetched.left_out == ("sda: not a plain file",)


def test_half_a_file_is_none(tmp_path: Path) -> None:
    content = tar_of(("work", FOLDER, b""), ("work/a", FILE, b"1"), ("work/b", FILE, b"x" * 10**6))
    fetched = unpacked(content, tmp_path, cap_bytes=10**7, limit_bytes=700_000)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    assert "bytes to skip" in fetched.left_out[0]


def test_nothing_follows_the_end_of_a_tar() -> None:
    """Podman does not read padding after the end, which would break the pipe."""
    packed = pack(PurePosixPath("file"), 0o644, Owner(0, 0), b"x").read()
    assert len(packed) == 4 * tarfile.BLOCKSIZE, "a header, its content, and two empty blocks"
