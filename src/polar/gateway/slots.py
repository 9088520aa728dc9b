"""Slots: a session's address at the gateway, and what the gateway keeps for it while it is open.

The key picks the session. A sealed slot answers every call with a hard stop; an unknown key is told nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from polar.gateway.calls.generation import Generation
from polar.gateway.calls.waits import WaitClock
from polar.gateway.dialects.base import Problem
from polar.gateway.http.recent_bodies import RecentBodies
from polar.store.journal import Journal
from polar.tokens.forest import CallForest
from polar.types import Call, CallProfile, CallsOutcome, Failure, Lease, Refusal, Slot, Waits

MOST_FAILURES = 100
"""That are kept of one session: the first is the one that is told."""


class OpenSlot:
    """One session at the gateway. Only the event loop's thread touches it, except the forest under `lock`."""

    def __init__(self, lease: Lease, profile: CallProfile, forest: CallForest) -> None:
        self.lease = lease
        self.profile = profile
        self.forest = forest
        self.key = f"sk-polar-{secrets.token_urlsafe(24)}"
        self.lock = asyncio.Lock()
        """Held while a request is prepared or a call is added, never while the engine samples."""
        self.reading = asyncio.Lock()
        """Held while a long body is read: a session takes one thread of the call path at a time, not all."""
        self.sealing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the slot is sealed. A future, because each call waits for it beside something else, and a
        future needs no task for that."""
        self.calls_admitted = 0
        self.calls_unsampled = 0
        """Of those admitted: that ended before their first token, as for a busy engine. They cost no budget."""
        self.sampled_tokens = 0
        """Counted while they are sampled, so that calls side by side share one budget."""
        self.unreceived: dict[bytes, Generation] = {}
        """Replies under way, or made and not yet in the harness's hands, by what was asked."""
        self.refused_for = ""
        """The budget for want of which a call was refused, if one was."""
        self.waits = WaitClock()
        self._failures: dict[bytes, Failure] = {}
        """By what was asked: calls that infrastructure failed. Only their own retry takes one back."""
        self._refusal: tuple[float, Refusal] | None = None
        """The last, and when it was."""
        self.final_messages = 0
        """How many requests got a final message because a budget was used up."""
        self._recent_bodies: dict[str, RecentBodies] = {}
        self._active: list[Generation] = []
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    def sealed(self) -> bool:
        return self.sealing.done()

    def recent_bodies(self, dialect: str, history_field: str) -> RecentBodies:
        """The newest bodies that came in a dialect."""
        if dialect not in self._recent_bodies:
            self._recent_bodies[dialect] = RecentBodies(history_field)
        return self._recent_bodies[dialect]

    @contextmanager
    def serving(self, generation: Generation) -> Generator[None]:
        """While a call is made, or its end is written: sealing breaks it off and waits for it."""
        self._active.append(generation)
        self._idle.clear()
        try:
            yield
        finally:
            self._active.remove(generation)
            if not self._active:
                self._idle.set()

    def failed(self, generation: Generation, problem: Problem) -> None:
        """A call that no listener waited for was failed to nobody; a retry of it is sampled anew."""
        if problem.failure is not None and generation.is_listened_to and len(self._failures) < MOST_FAILURES:
            self._failures.setdefault(generation.key, problem.failure)
        elif problem.code == "client_gave_up":
            self.refused(problem)

    def refused(self, problem: Problem) -> None:
        """A request got an error, be it a call or not."""
        if not self.sealed:
            self._refusal = (time.time(), Refusal(problem.code, problem.message, problem.failure))

    def answered(self, generation: Generation) -> None:
        """The harness has the whole reply of a call."""
        self._failures.pop(generation.key, None)
        if generation.defect is not None and len(self._failures) < MOST_FAILURES:
            self._failures[generation.key] = generation.defect
        if self._refusal is not None and generation.arrived >= self._refusal[0]:
            self._refusal = None

    @property
    def outcome(self) -> CallsOutcome:
        refusal = self._refusal[1] if self._refusal is not None else None
        return CallsOutcome(tuple(self._failures.values()), refusal, self.exhausted)

    def forget(self, generation: Generation) -> None:
        """The harness has the reply, or there is none: asked for again, it is another sample."""
        if self.unreceived.get(generation.key) is generation:
            del self.unreceived[generation.key]

    def admit(self) -> int:
        """Counts a new call in and gives its number. Raises `Problem` where `check` does."""
        self.check()
        self.calls_admitted += 1
        return self.calls_admitted

    def check(self) -> None:
        """Raises `Problem` when sealed or out of budget."""
        if self.sealed:
            raise sealed_problem()
        # Looked at anew each time: a call that failed gives back what it would have used.
        self.refused_for = self._used_up()
        if self.refused_for:
            raise Problem(400, "budget_exhausted", f"the session has used up its budget: {self.refused_for}")

    def _used_up(self) -> str:
        max_calls = self.lease.task.budgets.max_calls
        if max_calls is not None and self.calls_admitted - self.calls_unsampled >= max_calls:
            return "max_calls"
        return "max_tokens" if self._out_of_tokens else ""

    @property
    def exhausted(self) -> str:
        """The budget that has ended the session: one for want of which a call was refused, or the tokens, the last
        of which end a reply in its middle."""
        return self.refused_for or ("max_tokens" if self._out_of_tokens else "")

    @property
    def _out_of_tokens(self) -> bool:
        return self.tokens_left is not None and self.tokens_left <= 0

    @property
    def tokens_left(self) -> int | None:
        """Of the budget of sampled tokens; None: there is none."""
        max_tokens = self.lease.task.budgets.max_tokens
        return None if max_tokens is None else max_tokens - self.sampled_tokens

    def reply_limit(self, asked: int | None, room: int) -> int:
        """The most tokens a reply may have: what the harness, the task, the budget and the context allow."""
        limits = (asked, self.lease.task.sampling.max_tokens, self.tokens_left, room)
        return max(1, min(limit for limit in limits if limit is not None))

    async def seal(self) -> None:
        if not self.sealed:
            self.sealing.set_result(None)
        for generation in tuple(self._active):
            generation.break_off()
        await self._idle.wait()


def sealed_problem() -> Problem:
    return Problem(400, "session_sealed", "this session has ended; no further calls are served")


class ListenerServer(Protocol):
    """Serves sessions at sockets of their own."""

    async def open_listener(self, session_id: str, listener: socket.socket) -> str: ...

    async def close_listener(self, session_id: str) -> None: ...


class SlotTable:
    """All slots of a node's gateway; fills the session's `Slots` port."""

    def __init__(self, journal: Journal, model: str, context_tokens: int) -> None:
        self._journal = journal
        self._model = model
        self._context_tokens = context_tokens
        self._by_key: dict[str, OpenSlot] = {}
        self._by_session: dict[str, OpenSlot] = {}
        self.base_url = ""
        """Known when the gateway listens."""
        self.listeners: ListenerServer | None = None

    def find(self, key: str) -> OpenSlot | None:
        return self._by_key.get(key)

    async def open(self, lease: Lease, profile: CallProfile, listener: socket.socket | None = None) -> Slot:
        slot = OpenSlot(lease, profile, CallForest(profile.matching))
        base_url = self.base_url if listener is None else await self._open_listener(slot.session_id, listener)
        self._by_key[slot.key] = slot
        self._by_session[slot.session_id] = slot
        return Slot(base_url=base_url, key=slot.key, model=self._model, context_tokens=self._context_tokens)

    async def seal(self, session_id: str) -> None:
        await self._by_session[session_id].seal()

    async def calls(self, session_id: str) -> list[Call]:
        return await self._journal.calls(session_id)

    def outcome(self, session_id: str) -> CallsOutcome:
        return self._by_session[session_id].outcome

    def waits(self, session_id: str) -> Waits:
        return self._by_session[session_id].waits.read()

    async def close(self, session_id: str) -> None:
        slot = self._by_session.pop(session_id, None)
        if slot is not None:
            try:
                await slot.seal()
            finally:
                del self._by_key[slot.key]
                if self.listeners is not None:
                    await self.listeners.close_listener(session_id)

    async def _open_listener(self, session_id: str, listener: socket.socket) -> str:
        assert self.listeners is not None, "a gateway that serves sessions has a server"
        return await self.listeners.open_listener(session_id, listener)
