"""One reply while it is made: what is said so far, who listens, and how it ended.

A generation belongs to its session and not to a connection. A harness that loses its connection asks again and
listens to the same generation; only when nobody has listened for some seconds is it broken off.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager

import msgspec

from polar.gateway.dialects.base import ChatRequest, Problem, Reply, ReplyHead
from polar.types import CallKind, Delta, Failure

GRACE_S = 0.1
"""An engine that refuses does so at once; so long after its admission a reply is not begun without a first word,
because a status says more than a broken stream."""


class Asked(msgspec.Struct, frozen=True):
    """A request with what its route and its headers say of it."""

    request: ChatRequest
    dialect: str
    kind: CallKind
    attribution: tuple[str, ...] = ()

    @property
    def twin_key(self) -> bytes:
        """Equal for a request and its retry, and for nothing else: parallel work of one harness differs in what it
        says or in its attribution."""
        parts = [self.dialect.encode(), *(text.encode() for text in self.attribution), *self.request.items]
        whole = b"\0".join([*parts, self.request.rest])
        return hashlib.blake2b(whole, digest_size=16).digest()


class Generation:
    """Only the event loop's thread touches it."""

    def __init__(self, asked: Asked, key: bytes, linger_s: float) -> None:
        """`key`: the request's `twin_key`."""
        self.asked = asked
        self.key = key
        self.arrived = time.time()
        self.head: ReplyHead | None = None
        """Set when the request is admitted."""
        self.opened = False
        """Whether a reply may begin: its first words are there, it has ended, or it was admitted `GRACE_S` ago."""
        self.deltas: list[Delta] = []
        self.reply: Reply | None = None
        """Set when the call is in the journal."""
        self.problem: Problem | None = None
        """Set instead when there will be no reply."""
        self.defect: Failure | None = None
        """Of a whole reply that is of no use to training."""
        self._linger_s = linger_s
        self._listeners = 0
        self._work: asyncio.Task[None] | None = None
        self._breakable = True
        self.broken_off = False
        """Nobody can join it any more, though its work may still be ending."""
        self._farewell: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when `done` is."""

    @property
    def done(self) -> bool:
        return self.reply is not None or self.problem is not None

    @property
    def is_listened_to(self) -> bool:
        return self._listeners > 0

    @property
    def joinable(self) -> bool:
        return self.problem is None and not self.broken_off

    def start(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work)

    def admitted(self, head: ReplyHead) -> None:
        """No news by itself: whoever listens waits for the first words, or for the end of `GRACE_S`."""
        self.head = head
        self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._tell)

    def say(self, deltas: Iterable[Delta], *, last: bool = False) -> None:
        """`last`: no news either, because the end of the reply is near and takes them along."""
        before = len(self.deltas)
        self.deltas.extend(deltas)
        if len(self.deltas) > before and not last:
            self._tell()

    def sampled(self) -> None:
        """The engine has ended. What is left is to keep the call, and nothing breaks that off."""
        self._breakable = False

    def finish(self, reply: Reply) -> None:
        self.reply = reply
        self._end()

    def fail(self, problem: Problem) -> None:
        self.problem = problem
        self._end()

    def break_off(self) -> None:
        if self._breakable and self._work is not None:
            self._breakable, self.broken_off = False, True
            self._work.cancel()

    @property
    def news(self) -> asyncio.Future[None]:
        """Done at the next change. Look at the state first, then wait for this without awaiting in between."""
        return self._news

    @contextmanager
    def listener(self) -> Generator[None]:
        self._listeners += 1
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None
        try:
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0 and not self.done:
                loop = asyncio.get_running_loop()
                self._farewell = loop.call_later(self._linger_s, self.break_off)

    def _end(self) -> None:
        self.ended.set_result(None)
        self._tell()

    def _tell(self) -> None:
        self.opened = True
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        told, self._news = self._news, asyncio.get_running_loop().create_future()
        told.set_result(None)
