"""The server's state: the database behind one writer thread, the clock, and signals that wake waiting requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, get_args

from sqlalchemy import Connection

from polar.config import ServerConfig
from polar.server.access.actions import UNDER_WAY, ActionFile, ActionUnderWay, append
from polar.server.clock import Clock
from polar.server.migrations import identity_of, prepare
from polar.server.status.counts import ServerCounts
from polar.store.blobs.base import BlobStore
from polar.store.blobs.choice import blob_store_of
from polar.store.database import StoreError
from polar.store.server_database import database_of
from polar.store.writer import DatabaseWriter
from polar.types import Action

log = logging.getLogger("polar.server")
T = TypeVar("T")
P = ParamSpec("P")
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
    counts: list[Callable[[ServerCounts], None]] = field(default_factory=list[Callable[[ServerCounts], None]])
    """What to count after the commit."""
    detail: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the record of control actions shall say of it, if it is one."""

    @property
    def lease_expires(self) -> float:
        """Of a lease granted or renewed now."""
        return self.now + self.config.heartbeat_s * self.config.lease_beats


class Signal:
    """Wakes everyone who listens when it fires."""

    def __init__(self) -> None:
        self._fired = asyncio.Event()
        self.count = 0
        """How often it has fired."""
        self.closed = False
        """The server is stopping: stop waiting."""

    def listen(self) -> asyncio.Event:
        """Set when the signal next fires. Call it before looking at the state, so that no change is missed."""
        return self._fired

    def fire(self) -> None:
        self.count += 1
        self._fired.set()
        if not self.closed:
            self._fired = asyncio.Event()

    def close(self) -> None:
        self.closed = True
        self._fired.set()


@dataclass(frozen=True)
class _Changed(Generic[T]):
    """What a transaction left behind."""

    result: T
    change: Change
    action: Action | None = None


class State:
    def __init__(self, writer: DatabaseWriter[Connection], config: ServerConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.counts = ServerCounts()
        self.signals: dict[Topic, Signal] = {topic: Signal() for topic in TOPICS}
        self.blobs: BlobStore | None = None
        """Where uploads are stored; None: in the database."""
        self.identity = ""
        """Of the database: blobs have it in their keys."""
        self._writer = writer
        self._under_way: set[asyncio.Task[object]] = set()
        self._action_file = None if config.action_log is None else ActionFile(config.action_log)

    @classmethod
    async def open(cls, config: ServerConfig, clock: Clock) -> State:
        writer = DatabaseWriter(database_of(config.database))
        blobs = blob_store_of(config.blobs, config.database)
        await writer.open(prepare)
        state = cls(writer, config, clock)
        state.blobs = blobs
        state.identity = await state.read(identity_of)
        return state

    async def change(self, work: Callable[Concatenate[Change, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in its own transaction, then fires the signals. Cancelling the caller stops neither. If it
        is made for a control action, that is recorded in the same transaction."""
        action = UNDER_WAY.get()

        def run(connection: Connection) -> _Changed[T]:
            change = Change(connection, self.clock(), self.config)
            result = work(change, *args, **kwargs)
            if action is None:
                return _Changed(result, change)
            done = action.about(**change.detail)
            return _Changed(result, change, append(connection, change.now, self.config.actions_kept, done))

        task = asyncio.create_task(self._fire_after(self._writer.write(run)))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def record(self, action: ActionUnderWay) -> None:
        """An action that changes nothing else."""
        before = UNDER_WAY.set(action)
        try:
            await self.change(lambda _: None)
        finally:
            UNDER_WAY.reset(before)

    def defer(self, work: Callable[Concatenate[Change, P], object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs `work` with the next change, as of now. A failure is only logged, and a killed server may lose
        it."""
        now = self.clock()
        self._writer.defer(lambda connection: work(Change(connection, now, self.config), *args, **kwargs))

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

    async def _fire_after(self, written: asyncio.Future[_Changed[T]]) -> T:
        began = time.perf_counter()
        try:
            changed = await written
        except StoreError:
            self.counts.database_failed()
            raise
        self.counts.changed(time.perf_counter() - began)
        for count in changed.change.counts:
            count(self.counts)
        for topic in changed.change.wakes:
            self.signals[topic].fire()
        if changed.action is not None and self._action_file is not None:
            try:
                self._action_file.write(changed.action)
            except OSError as error:  # the database has it
                log.warning("cannot write %s: %s", self.config.action_log, error.strerror)
        return changed.result
