"""The server's state: one database behind one thread, the clock, and the bells that wake those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, Literal, ParamSpec, TypeVar

from sqlalchemy import Connection

from polar.config import ServerConfig
from polar.server.records.tables import prepare
from polar.store.server_database import database_of
from polar.store.writer import Writer

T = TypeVar("T")
P = ParamSpec("P")
Clock = Callable[[], float]
"""Unix seconds."""
Topic = Literal["queue", "results", "events", "callbacks", "policy"]
TOPICS: tuple[Topic, ...] = ("queue", "results", "events", "callbacks", "policy")


@dataclass
class Change:
    """One atomic change of the state, in order with all others."""

    connection: Connection
    now: float
    config: ServerConfig
    wakes: set[Topic] = field(default_factory=set[Topic])
    """Whose bells ring once the change is committed."""

    @property
    def lease_expires(self) -> float:
        """Of a lease granted or renewed now."""
        return self.now + self.config.heartbeat_s * self.config.lease_beats


class Bell:
    """Rings for all who listen at that moment."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.silenced = False
        """The server stops: nobody shall wait any longer."""

    def listen(self) -> asyncio.Event:
        """Set at the next ring. Listen first and look at the state then, and no ring is missed."""
        return self._rung

    def ring(self) -> None:
        self._rung.set()
        if not self.silenced:
            self._rung = asyncio.Event()

    def silence(self) -> None:
        self.silenced = True
        self._rung.set()


class State:
    def __init__(self, writer: Writer[Connection], config: ServerConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.bells: dict[Topic, Bell] = {topic: Bell() for topic in TOPICS}
        self._writer = writer
        self._under_way: set[asyncio.Task[object]] = set()

    @classmethod
    async def open(cls, config: ServerConfig, clock: Clock) -> State:
        writer = Writer(database_of(config.database))
        await writer.open(prepare)
        return cls(writer, config, clock)

    async def change(self, work: Callable[Concatenate[Change, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does `work` in a transaction of its own. A caller that is cancelled takes nothing back, and those who
        wait for the change hear of it all the same."""

        def run(connection: Connection) -> tuple[T, set[Topic]]:
            change = Change(connection, self.clock(), self.config)
            return work(change, *args, **kwargs), change.wakes

        task = asyncio.create_task(self._ring_after(self._writer.write(run)))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """After every change that was asked for before it."""
        return await self._writer.read(lambda connection: work(connection, *args, **kwargs))

    @property
    def alive_since(self) -> float:
        """A node that was heard of later is alive."""
        return self.clock() - self.config.heartbeat_s * self.config.lease_beats

    def silence(self) -> None:
        for bell in self.bells.values():
            bell.silence()

    async def close(self) -> None:
        await self._writer.close()

    async def _ring_after(self, written: asyncio.Future[tuple[T, set[Topic]]]) -> T:
        result, wakes = await written
        for topic in wakes:
            self.bells[topic].ring()
        return result
