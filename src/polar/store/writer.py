"""One thread that owns a database connection, so that the event loop never waits for a disk.

Writes queued while one commits go into the next transaction together, in order; each is acknowledged after its
commit. A deferred write, which has no waiter, goes with the next write and needs no transaction of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from polar.store.database import Database

LOGGER = logging.getLogger("polar.store")

C = TypeVar("C")
T = TypeVar("T")

DEFERRED_S = 0.25
"""The longest time a deferred write stays in memory."""


@dataclass(frozen=True)
class _Write(Generic[C]):
    work: Callable[[C], Any]
    done: asyncio.Future[Any] | None
    """None: the write is deferred."""

    def settle(self, result: Any, error: Exception | None) -> None:
        """On the event loop. The future of a cancelled caller is done already."""
        if self.done is None:
            if error is not None:
                LOGGER.warning("a deferred write failed: %s", error)
        elif self.done.done():
            return
        elif error is None:
            self.done.set_result(result)
        else:
            self.done.set_exception(error)


_Outcome = tuple[_Write[C], Any, Exception | None]


class DatabaseWriter(Generic[C]):
    """`work` runs in the thread, and again if another write of its transaction failed: it must only use the
    connection."""

    def __init__(self, database: Database[C], *, read_only: bool = False) -> None:
        self._database = database
        self._read_only = read_only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polar-store")
        self._lock = threading.Lock()
        self._waiting: list[_Write[C]] = []
        self._flush_is_due = False
        self._timer_runs = False
        self._connection: C | None = None
        self._closed = False

    async def open(self, prepare: Callable[[C], None]) -> None:
        """Connects and runs `prepare`; leaves no thread behind if that fails."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._in_thread(lambda: self._connect(prepare))
        except BaseException:
            await self.close()
            raise

    def write(self, work: Callable[[C], T]) -> asyncio.Future[T]:
        """Queues `work` at once; the future is done when it is committed. Cancelling it undoes nothing."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue(_Write(work, done))
        self._flush_now()
        return done

    def defer(self, work: Callable[[C], object]) -> None:
        """Queues `work` for the next write or read. A failure is only logged."""
        self._queue(_Write(work, None))
        if not self._timer_runs:
            self._timer_runs = True
            self._loop.call_later(DEFERRED_S, self._flush_soon)

    def _queue(self, write: _Write[C]) -> None:
        self._refuse_if_closed()
        with self._lock:
            self._waiting.append(write)

    def _flush_now(self) -> None:
        with self._lock:
            due, self._flush_is_due = not self._flush_is_due, True
        if due:
            self._thread.submit(self._flush)

    def _flush_soon(self) -> None:
        self._timer_runs = False
        if self._waiting and not self._closed:
            self._flush_now()

    async def read(self, work: Callable[[C], T]) -> T:
        """Runs `work` after every write queued before it."""
        self._refuse_if_closed()

        def reading() -> T:
            self._flush()
            connection = self._live()
            try:
                return work(connection)
            except self._database.failure as error:
                raise self._named(error) from error
            finally:
                self._database.rollback(connection)  # else later reads on PostgreSQL would see this snapshot

        return await self._in_thread(reading)

    async def close(self) -> None:
        """After every write queued before it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        await self._in_thread(self._disconnect)
        self._thread.shutdown(wait=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))

    def _connect(self, prepare: Callable[[C], None]) -> None:
        try:
            self._connection = self._database.connect()
            if self._read_only:
                prepare(self._connection)
            else:
                self._transaction([prepare])
        except self._database.failure as error:
            raise self._named(error) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._flush()
            if self._waiting:
                LOGGER.warning("%d deferred writes are lost", len(self._waiting))
            self._database.close(self._connection)
            self._connection = None

    def _flush(self) -> None:
        with self._lock:
            batch, self._waiting, self._flush_is_due = self._waiting, [], False
        if batch and (outcomes := self._outcomes(batch)):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, outcomes)

    def _outcomes(self, batch: Sequence[_Write[C]]) -> list[_Outcome[C]]:
        try:
            results = self._transaction([write.work for write in batch])
            return [(write, result, None) for write, result in zip(batch, results, strict=True)]
        except self._database.unable as error:
            return self._without_deferred(batch, error)
        except Exception as error:
            return self._one_by_one(batch, error)

    def _without_deferred(self, batch: Sequence[_Write[C]], error: Exception) -> list[_Outcome[C]]:
        """A full or locked disk fails every write now, but deferred ones are kept for later."""
        deferred = [write for write in batch if write.done is None]
        awaited = [write for write in batch if write.done is not None]
        if not deferred:
            return [(write, None, self._named(error)) for write in batch]
        with self._lock:
            self._waiting[:0] = deferred
        return self._outcomes(awaited) if awaited else []

    def _one_by_one(self, batch: Sequence[_Write[C]], error: Exception) -> list[_Outcome[C]]:
        """A bad write must not fail the others of its transaction."""
        if len(batch) == 1:
            return [(batch[0], None, self._named(error))]
        return [outcome for write in batch for outcome in self._outcomes([write])]

    def _transaction(self, works: Sequence[Callable[[C], Any]]) -> list[Any]:
        connection = self._live()
        try:
            self._database.begin(connection)
            results = [work(connection) for work in works]
            self._database.commit(connection)
        except BaseException:
            self._database.rollback(connection)
            raise
        return results

    def _live(self) -> C:
        assert self._connection is not None, "the thread runs nothing before open and after close"
        return self._connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise self._database.error(f"{self._database.name} is closed")

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, self._database.failure):
            reason = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's error
            return self._database.error(f"{self._database.name}: {reason}")
        return error


def _settle(outcomes: Sequence[_Outcome[Any]]) -> None:
    for write, result, error in outcomes:
        write.settle(result, error)
