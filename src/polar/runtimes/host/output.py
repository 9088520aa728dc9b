"""Output of a command: a pipe pumped into a log file up to a cap, with its tail kept in memory for messages.

A full log never blocks or kills the writer: output after the cap is read and discarded.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from io import FileIO
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.options import RuntimeOptions
from polar.store.private import private_file
from polar.types import is_id

READ_BYTES = 2**16
"""As much as a pipe holds."""


class CappedLog:
    """A log file of up to `cap_bytes`, including what it already holds; one more line says that it was cut. It is
    created with the first byte: most commands print nothing to one of their two streams."""

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
            self._file = FileIO(self._path, "a", opener=private_file)
            self._room_bytes -= os.fstat(self._file.fileno()).st_size
        except OSError:
            self._room_bytes = -1

    def _append(self, data: bytes) -> None:
        assert self._file is not None, "`write` opens it first"
        try:
            self._file.write(data)
        except OSError:  # a full disk must not fail the command
            self._room_bytes = -1

    def tail(self) -> str:
        return self._tail.decode("utf-8", errors="replace")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def command_log(folder: Path, name: str, stream: str, options: RuntimeOptions) -> CappedLog:
    """The log of one output stream of a command."""
    if not is_id(name):
        raise RuntimeFailure(f"{name!r} is not a valid log name")
    path = folder / f"{name}.{stream}"
    return CappedLog(path, cap_bytes=options.output_cap_bytes, tail_bytes=options.tail_bytes)


class Pump:
    """Copies a pipe into a log until the last writer closes it.

    It reads the descriptor itself. uvloop's pipe transport closes the descriptor and then the file object of the
    same number, which by then may be a descriptor that another thread has just opened.
    """

    def __init__(self, log: CappedLog) -> None:
        self.log = log
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        self._loop.add_reader(self._read_fd, self._read)

    def release_writer(self) -> None:
        """Closes our copy of the writing end, so that the pipe ends with the last process that has it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Copies what was written before the call. Does not wait for a child that keeps the pipe open or goes on
        writing."""
        goal_bytes = self._waiting_bytes()
        while goal_bytes > 0:
            goal_bytes -= self._read() or goal_bytes

    def close(self) -> None:
        self.release_writer()
        if not self.ended.done():
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self.log.close()
            self.ended.set_result(None)

    def _read(self) -> int:
        """Returns the number of bytes read."""
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self.log.write(data)
        else:
            self.close()
        return len(data)

    def _waiting_bytes(self) -> int:
        if self.ended.done():
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self._read_fd, termios.FIONREAD, b"\0" * 4))
        return count
