"""The server's state: the database behind one writer thread, the clock, and signals that wake waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, Literal, ParamSpec, TypeVar, get_args

from sqlalchemy import Connection

from polar.config import ServerConfig
from polar.server.migrations import prepare
from polar.store.server_database import database_of
from polar.store.writer import DatabaseWriter

T = TypeVar("T")
P = ParamSpec("P")
Clock = Callable[[], float]
"""Unix seconds."""
Topic = Literal["queue", "results", "groups", "events", "callbacks", "policy", "live"]
TOPICS: tuple[Topic, ...] = get_args(Topic)


@dataclass
class Change:
    """One transaction. Changes are made one after the other."""

    connection: Connection
    now: float
    config: ServerConfig
    wakes: set[Topic] = field(default_factory=set[Topic])
    """Signals to fire after the commit."""

    @property
    def lease_expires(self) -> float:
        """Of a lease granted or renewed now."""
        return self.now + self.config.heartbeat_s * self.config.lease_beats


class ClockJumps:
    """Notices that the wall clock was set: between two looks it did not move as the steady clock did."""

    def __init__(self, steady: Clock, tolerance_s: float) -> None:
        self._steady = steady
        self._tolerance_s = tolerance_s
        self._offset: float | None = None

    def jumped(self, now: float) -> float:
        """By how many seconds the wall clock was set since the last look; 0: it was not."""
        offset = now - self._steady()
        before, self._offset = self._offset, offset
        moved = 0.0 if before is None else offset - before
        return moved if abs(moved) > self._tolerance_s else 0.0


class Signal:
    """Wakes everyone who listens when it fires."""

    def __init__(self) -> None:
        self._fired = asyncio.Event()
        self.closed = False
        """The server is stopping: stop waiting."""

    def listen(self) -> asyncio.Event:
        """Set when the signal next fires. Call it before looking at the state, so that no change is missed."""
        return self._fired

    def fire(self) -> None:
        self._fired.set()
        if not self.closed:
            self._fired = asyncio.Event()

    def close(self) -> None:
        self.closed = True
        self._fired.set()


class State:
    def __init__(self, writer: DatabaseWriter[Connection], config: ServerConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.signals: dict[Topic, Signal] = {topic: Signal() for topic in TOPICS}
        self._writer = writer
        self._under_way: set[asyncio.Task[object]] = set()

    @classmethod
    async def open(cls, config: ServerConfig, clock: Clock) -> State:
        writer = DatabaseWriter(database_of(config.database))
        await writer.open(prepare)
        return cls(writer, config, clock)

    async def change(self, work: Callable[Concatenate[Change, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in its own transaction, then fires the signals. Cancelling the caller stops neither."""

        def run(connection: Connection) -> tuple[T, set[Topic]]:
            change = Change(connection, self.clock(), self.config)
            return work(change, *args, **kwargs), change.wakes

        task = asyncio.create_task(self._fire_after(self._writer.write(run)))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Sees every change that was requested before it."""
        return await self._writer.read(lambda connection: work(connection, *args, **kwargs))

    @property
    def alive_since(self) -> float:
        """A node last seen after this time is alive."""
        return self.clock() - self.config.heartbeat_s * self.config.lease_beats

    def close_signals(self) -> None:
        """Ends long polls and event streams."""
        for signal in self.signals.values():
            signal.close()

    async def close(self) -> None:
        await self._writer.close()

    async def _fire_after(self, written: asyncio.Future[tuple[T, set[Topic]]]) -> T:
        result, wakes = await written
        for topic in wakes:
            self.signals[topic].fire()
        return result
