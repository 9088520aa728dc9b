"""A capped log, and a pump that loses no output and does not wait for processes that keep the pipe open."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
import uvloop

from polar.runtimes.host.output import CappedLog, Pump


def test_the_log_ends_at_its_cap_with_a_note(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log", cap_bytes=5, tail_bytes=4)
    for part in (b"abc", b"def", b"ghi"):
        log.write(part)
    log.close()
    assert (tmp_path / "log").read_text() == "abcde\n[polar: the log ends here, at its cap of 5 bytes]\n"
    assert log.tail() == "fghi"


def test_a_log_just_full_needs_no_note(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log", cap_bytes=5, tail_bytes=4)
    log.write(b"abcde")
    log.close()
    assert (tmp_path / "log").read_text() == "abcde"


def test_a_log_goes_on_where_an_earlier_command_ended(tmp_path: Path) -> None:
    for part in (b"abc", b"def"):
        log = CappedLog(tmp_path / "log", cap_bytes=5, tail_bytes=4)
        log.write(part)
        log.close()
    assert (tmp_path / "log").read_text() == "abcde\n[polar: the log ends here, at its cap of 5 bytes]\n"


def test_without_output_there_is_no_file(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log", cap_bytes=5, tail_bytes=4)
    log.close()
    assert (log.tail(), list(tmp_path.iterdir())) == ("", [])


def test_a_log_that_cannot_be_made_is_not_the_commands_trouble(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "no" / "folder", cap_bytes=100, tail_bytes=10)
    log.write(b"one")
    log.close()
    assert log.tail() == "one"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_not_the_commands_trouble() -> None:
    log = CappedLog(Path("/dev/full"), cap_bytes=100, tail_bytes=10)
    log.write(b"one ")
    log.write(b"two")
    log.close()
    assert log.tail() == "one two"


async def test_drain_takes_all_that_was_written_while_the_pipe_stays_open(tmp_path: Path) -> None:
    pump = Pump(CappedLog(tmp_path / "log", cap_bytes=10**6, tail_bytes=10))
    pump.start()
    os.write(pump.write_fd, b"x" * 50_000)
    pump.drain()
    assert (tmp_path / "log").stat().st_size == 50_000
    assert not pump.ended.done()
    pump.close()


async def test_a_pump_ends_with_its_last_writer(tmp_path: Path) -> None:
    pump = Pump(CappedLog(tmp_path / "log", cap_bytes=10, tail_bytes=10))
    pump.start()
    pump.release_writer()
    await pump.ended
    pump.drain()
    pump.close()


async def test_a_pump_that_never_started_can_be_closed(tmp_path: Path) -> None:
    Pump(CappedLog(tmp_path / "log", cap_bytes=10, tail_bytes=10)).close()


def test_closing_a_pump_closes_no_descriptor_of_another_thread(tmp_path: Path) -> None:
    """A node serves with uvloop, and its threads open and close files all the time."""
    stop, broken = threading.Event(), list[str]()

    def open_files() -> None:
        while not stop.is_set():
            handle = os.open(os.devnull, os.O_RDONLY)
            try:
                os.fstat(handle)
                os.close(handle)
            except OSError as error:
                broken.append(str(error))

    async def pumps() -> None:
        for _ in range(2000):
            pump = Pump(CappedLog(tmp_path / "log", cap_bytes=10, tail_bytes=10))
            pump.start()
            pump.close()
            await asyncio.sleep(0)

    threads = [threading.Thread(target=open_files) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        uvloop.run(pumps())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert broken == []
