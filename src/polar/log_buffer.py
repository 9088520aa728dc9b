"""Warnings and errors of a process, kept until they have been delivered to where a person reads them.

A node sends them with its heartbeats, the server writes them to its database. They go to the usual log as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from polar.types import LogLine
from polar.types.service.log import MAX_MESSAGE

MAX_PENDING = 500
"""Beyond that the oldest are dropped."""


class LogBuffer(logging.Handler):
    """Lines are numbered from 0, so that a receiver notices repetitions and gaps."""

    def __init__(self, wanted: Callable[[logging.LogRecord], bool] = lambda _: True) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(wanted)
        self._pending: deque[LogLine] = deque()
        self._number = 0
        """Of the first pending line."""
        self.on_line: Callable[[], None] = lambda: None
        """Called after each new line, in the thread that logged it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Any thread may log; the handler's lock is held."""
        try:
            self._pending.append(_line(record))
            if len(self._pending) > MAX_PENDING:
                self._pending.popleft()
                self._number += 1
            self.on_line()
        except Exception:
            self.handleError(record)

    def pending(self, count: int) -> tuple[int, tuple[LogLine, ...]]:
        """The number of the oldest pending line, and up to `count` lines from there."""
        with self._locked():
            return self._number, tuple(self._pending)[:count]

    def delivered(self, number: int) -> None:
        """All lines before this number have arrived."""
        with self._locked():
            while self._pending and self._number < number:
                self._pending.popleft()
                self._number += 1

    @contextmanager
    def listening(self) -> Generator[None]:
        """While this lasts, the buffer gets what any logger of the process logs."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _line(record: logging.LogRecord) -> LogLine:
    """With the error in one line; the usual log has its traceback."""
    message = record.getMessage()
    if record.exc_info and (error := record.exc_info[1]) is not None:
        message = f"{message}: {type(error).__name__}: {error}"
    session_id = getattr(record, "session_id", None)
    return LogLine(
        at=record.created,
        level="error" if record.levelno >= logging.ERROR else "warning",
        message=_plain(message)[:MAX_MESSAGE],
        session_id=_plain(session_id)[:200] if isinstance(session_id, str) else None,
    )


def _plain(text: str) -> str:
    """Without lone surrogates, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()
