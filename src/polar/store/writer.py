"""One thread that owns a database connection, so that the event loop never waits for a disk.

Writes that pile up while one commits go into the next transaction together; each is acknowledged only after
the commit that holds it. What nobody waits for goes with the next write, and costs no transaction of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from polar.store.database import JournalError, Opening, StoreError, database_of

__all__ = ["JournalError", "StoreError", "Work", "Writer"]

LOGGER = logging.getLogger("polar.store")

T = TypeVar("T")
Work = Callable[[Connection], T]
"""Runs in the thread, and once more where a neighbour in its transaction failed: it does nothing but use the
connection."""

BUSY_TIMEOUT_S = 10.0
SOON_S = 0.25
"""So long a write that nobody waits for may stay in memory when no other comes."""


class Writer:
    def __init__(self, source: Path | str, *, read_only: bool = False) -> None:
        """`source`: a journal's path, or the SQLAlchemy address of an SQLite or PostgreSQL database."""
        self._database = database_of(source, Opening(BUSY_TIMEOUT_S, read_only))
        self._read_only = read_only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polar-store")
        self._lock = threading.Lock()
        self._waiting: list[tuple[Work[Any], Future[Any]]] = []
        self._unhurried: list[tuple[Work[Any], Future[Any]]] = []
        self._connection: Connection | None = None
        self._closed = False

    async def open(self, prepare: Work[None]) -> None:
        """Connects and runs `prepare`; leaves no thread behind where that fails."""
        try:
            await self._in_thread(lambda: self._connect(prepare))
        except BaseException:
            await self.close()
            raise

    def write(self, work: Work[T]) -> asyncio.Future[T]:
        """Queues `work` at once, in order; the future is done when it is committed. A caller that is cancelled
        or does not wait takes nothing back."""
        self._refuse_if_closed()
        done: Future[T] = Future()
        with self._lock:
            self._waiting.append((work, done))
            flush_is_due = len(self._waiting) == 1
        if flush_is_due:
            self._thread.submit(self._flush)
        return asyncio.shield(asyncio.wrap_future(done))

    def write_soon(self, work: Work[None]) -> None:
        """Queues `work` to go with the next write, and before any read. Where it fails, only the log says so."""
        self._refuse_if_closed()
        done: Future[None] = Future()
        done.add_done_callback(_log_failure)
        with self._lock:
            self._unhurried.append((work, done))
            timer_is_due = len(self._unhurried) == 1
        if timer_is_due:
            asyncio.get_running_loop().call_later(SOON_S, self._flush_soon)

    def _flush_soon(self) -> None:
        if self._unhurried and not self._closed:
            self._thread.submit(self._flush)

    async def read(self, work: Work[T]) -> T:
        """Runs `work` after every write queued before it."""
        self._refuse_if_closed()

        def reading() -> T:
            self._flush()
            connection = self._live()
            try:
                return work(connection)
            except DBAPIError as error:
                raise self._named(error) from error
            finally:
                _end(connection)  # else PostgreSQL would go on showing this moment to later reads

        return await self._in_thread(reading)

    async def close(self) -> None:
        """After every write queued before it. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._in_thread(self._disconnect)
        self._thread.shutdown(wait=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))

    def _connect(self, prepare: Work[None]) -> None:
        try:
            self._connection = self._database.engine().connect()
            if self._read_only:
                prepare(self._connection)
            else:
                self._transaction([prepare])
        except DBAPIError as error:
            raise self._named(error) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._flush()
            if self._unhurried:
                LOGGER.warning("%d writes that nobody waited for are lost", len(self._unhurried))
            self._connection.close()
            self._connection = None

    def _flush(self) -> None:
        with self._lock:
            unhurried, waiting, self._unhurried, self._waiting = self._unhurried, self._waiting, [], []
        try:
            self._settle([*unhurried, *waiting], can_wait=bool(unhurried))
        except OperationalError:
            with self._lock:  # a locked disk is no reason to lose what can wait
                self._unhurried[:0] = unhurried
            self._settle(waiting)

    def _settle(self, batch: list[tuple[Work[Any], Future[Any]]], *, can_wait: bool = False) -> None:
        """`can_wait`: a locked disk is raised, and nobody is told yet."""
        if not batch:
            return
        try:
            results = self._transaction([work for work, _ in batch])
        except Exception as error:
            if can_wait and isinstance(error, OperationalError):
                raise
            self._settle_failed(batch, error)
        else:
            for (_, done), result in zip(batch, results, strict=True):
                done.set_result(result)

    def _settle_failed(self, batch: list[tuple[Work[Any], Future[Any]]], error: Exception) -> None:
        """A full or locked disk fails every write; a bad write must not take its neighbours with it, so then
        each is tried on its own."""
        if len(batch) == 1 or isinstance(error, OperationalError):
            for _, done in batch:
                done.set_exception(self._named(error))
            return
        for work, done in batch:
            try:
                done.set_result(self._transaction([work])[0])
            except Exception as own_error:
                done.set_exception(self._named(own_error))

    def _transaction(self, works: list[Work[Any]]) -> list[Any]:
        connection = self._live()
        try:
            self._database.begin(connection)
            results = [work(connection) for work in works]
            connection.commit()
        except BaseException:
            _end(connection)
            raise
        return results

    def _live(self) -> Connection:
        assert self._connection is not None, "the thread runs nothing before open and after close"
        return self._connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise self._database.error(f"{self._database.name} is closed")

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, DBAPIError):
            return self._database.error(f"{self._database.name}: {error.orig}")
        return error


def _log_failure(done: Future[None]) -> None:
    if (error := done.exception()) is not None:
        LOGGER.warning("a write that nobody waits for failed: %s", error)


def _end(connection: Connection) -> None:
    """Ends the transaction, if any is left. A connection that cannot even do that is replaced at its next use."""
    try:
        connection.rollback()
    except DBAPIError:
        connection.invalidate()
