"""Output of a command: a pipe pumped into a log file up to a cap, its end kept in memory for messages.

A full log never blocks or kills the writer: what comes after the cap is read and thrown away.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from io import FileIO
from pathlib import Path

BLOCK_BYTES = 2**18


class CappedLog:
    """A log file that takes up to `cap_bytes`, counting what it already holds, then one line that says so. It is
    made with the first byte: most commands print nothing to one of their two streams."""

    def __init__(self, path: Path, *, cap_bytes: int, tail_bytes: int) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._cap_bytes = cap_bytes
        self._room_bytes = cap_bytes
        self._tail_bytes = tail_bytes
        self._tail = b""

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-self._tail_bytes :]
        if self._file is None and self._room_bytes >= 0:
            self._open()
        if self._room_bytes < 0:
            return
        self._append(data[: self._room_bytes])
        self._room_bytes -= len(data)
        if self._room_bytes < 0:
            self._append(f"\n[polar: the log ends here, at its cap of {self._cap_bytes} bytes]\n".encode())

    def _open(self) -> None:
        try:
            self._file = FileIO(self._path, "a")
            self._room_bytes -= os.fstat(self._file.fileno()).st_size
        except OSError:
            self._room_bytes = -1

    def _append(self, data: bytes) -> None:
        assert self._file is not None, "it is opened before there is room in it"
        try:
            self._file.write(data)
        except OSError:  # a full disk is the log's loss, not the command's
            self._room_bytes = -1

    def tail(self) -> str:
        return self._tail.decode("utf-8", errors="replace")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Pump:
    """Moves one pipe's bytes into a log until the last writer has gone.

    Without a transport: uvloop's closes the descriptor of a pipe twice, and between the two it may have become
    that of a file another thread has just opened.
    """

    def __init__(self, log: CappedLog) -> None:
        self.log = log
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe()
        self._received_bytes = 0
        self.ended = self._loop.create_future()

    async def start(self) -> None:
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._take)

    def release_writer(self) -> None:
        """Closes our copy of the writing end, so that the pipe ends with its last process."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _take(self) -> None:
        try:
            data = os.read(self._read_fd, BLOCK_BYTES)
        except BlockingIOError:
            return
        if not data:
            return self._end()
        self._received_bytes += len(data)
        self.log.write(data)

    def _end(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self.log.close()
            self.ended.set_result(None)

    async def drain(self) -> None:
        """Returns when all that was written before the call is in the log. A child that keeps the pipe open,
        or goes on writing, is not waited for."""
        goal_bytes = self._received_bytes + self._waiting_bytes()
        while self._received_bytes < goal_bytes and not self.ended.done():  # noqa: ASYNC110 - the loop reads
            await asyncio.sleep(0)

    def _waiting_bytes(self) -> int:
        if self.ended.done():
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self._read_fd, termios.FIONREAD, b"\0" * 4))
        return count

    async def close(self) -> None:
        self.release_writer()
        self._end()
