"""Slots: a session's address at the gateway, and the state the gateway keeps for it while it is open.

The key picks the session. A sealed slot refuses every call for good.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from polar.gateway.dialects.problems import Problem
from polar.gateway.http.bodies import RecentBodies
from polar.gateway.http.listeners import SessionListeners
from polar.store.journal import Journal
from polar.tokens.forest import CallForest
from polar.types import Call, CallProfile, CallsOutcome, Failure, Lease, Refusal, SessionSockets, Slot, Waits

if TYPE_CHECKING:  # a slot and its calls know each other
    from polar.gateway.calls.model_call import ModelCall

NO_SOCKETS = SessionSockets()
MOST_FAILURES = 100
"""Kept for one session; the first decides its verdict."""


class OpenSlot:
    """One session at the gateway. Only the event loop's thread touches it, except the forest under `lock`."""

    def __init__(self, lease: Lease, profile: CallProfile, forest: CallForest) -> None:
        self.lease = lease
        self.profile = profile
        self.forest = forest
        self.key = f"sk-polar-{secrets.token_urlsafe(24)}"
        self.lock = asyncio.Lock()
        """Held while a request is attached or a call is added, never while the engine samples."""
        self.reading = asyncio.Lock()
        """Held while a long body is read, so that one session uses one thread of the call path at a time."""
        self.sealing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the slot is sealed. A future, because calls wait for it together with something else."""
        self.calls_admitted = 0
        self.calls_unsampled = 0
        """Admitted calls that ended before their first token, as with a busy engine. They cost no budget."""
        self.sampled_tokens = 0
        """Counted while they are sampled, so that parallel calls share one budget."""
        self.unreceived: dict[bytes, ModelCall] = {}
        """By key: calls whose reply is under way, or complete and not yet delivered."""
        self.refused_for = ""
        """Name of the exhausted budget that caused a refusal."""
        self.waits = WaitClock()
        self.final_messages = 0
        """Requests that got a final message because a budget was used up."""
        self._failures: dict[bytes, Failure] = {}
        """By key: calls that infrastructure failed. Only their own retry clears one."""
        self._refusal: tuple[float, Refusal] | None = None
        """The last one, and its Unix time."""
        self._refusals = 0
        self._recent_bodies: dict[str, RecentBodies] = {}
        self._active: list[ModelCall] = []
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    def sealed(self) -> bool:
        return self.sealing.done()

    def recent_bodies(self, dialect: str, history_field: str) -> RecentBodies:
        """The latest request bodies in a dialect."""
        if dialect not in self._recent_bodies:
            self._recent_bodies[dialect] = RecentBodies(history_field)
        return self._recent_bodies[dialect]

    # Budgets

    def check(self) -> None:
        """Raises `Problem` when the session may make no further call."""
        if self.sealed:
            raise sealed_problem()
        # Computed anew each time, because a call that fails gives its share back.
        self.refused_for = self._used_up()
        if self.refused_for:
            raise Problem(400, "budget_exhausted", f"the session has used up its budget: {self.refused_for}")

    def admit(self) -> int:
        """Charges a call and returns its number. Raises `Problem` where `check` does."""
        self.check()
        self.calls_admitted += 1
        return self.calls_admitted

    @property
    def exhausted(self) -> str:
        """The budget that ended the session: one that refused a call, or the tokens, which end a reply midway."""
        return self.refused_for or ("max_tokens" if self._out_of_tokens else "")

    @property
    def tokens_left(self) -> int | None:
        """Of the budget of sampled tokens; None: the task sets none."""
        max_tokens = self.lease.task.budgets.max_tokens
        return None if max_tokens is None else max_tokens - self.sampled_tokens

    def reply_limit(self, asked: int | None, room: int) -> int:
        """The longest reply that the harness, the task, the budget and the context allow."""
        limits = (asked, self.lease.task.sampling.max_tokens, self.tokens_left, room)
        return max(1, min(limit for limit in limits if limit is not None))

    def _used_up(self) -> str:
        max_calls = self.lease.task.budgets.max_calls
        if max_calls is not None and self.calls_admitted - self.calls_unsampled >= max_calls:
            return "max_calls"
        return "max_tokens" if self._out_of_tokens else ""

    @property
    def _out_of_tokens(self) -> bool:
        return self.tokens_left is not None and self.tokens_left <= 0

    # Calls and their outcome

    @contextmanager
    def serving(self, call: ModelCall) -> Generator[None]:
        """While a call is made, or its end is written: sealing breaks it off and waits for it."""
        self._active.append(call)
        self._idle.clear()
        try:
            yield
        finally:
            self._active.remove(call)
            if not self._active:
                self._idle.set()

    def forget(self, call: ModelCall) -> None:
        """The reply is delivered, or there is none: the same request is a new sample from now on."""
        if self.unreceived.get(call.key) is call:
            del self.unreceived[call.key]

    def failed(self, call: ModelCall, problem: Problem) -> None:
        """A failure counts only if somebody listened: without a listener the retry is sampled anew."""
        if problem.failure is not None and call.is_listened_to and len(self._failures) < MOST_FAILURES:
            self._failures.setdefault(call.key, problem.failure)
        elif problem.code == "client_gave_up":
            self.refused(problem)

    def refused(self, problem: Problem) -> None:
        """A request got an error, be it a model call or not."""
        if not self.sealed:
            self._refusal = (time.time(), Refusal(problem.code, problem.message, problem.failure))
            self._refusals += problem.code != "budget_exhausted"

    def answered(self, call: ModelCall) -> None:
        """The harness has the whole reply of a call."""
        self._failures.pop(call.key, None)
        defect = call.defect()
        if defect is not None and len(self._failures) < MOST_FAILURES:
            self._failures[call.key] = defect
        if self._refusal is not None and call.arrived >= self._refusal[0]:
            self._refusal = None

    @property
    def outcome(self) -> CallsOutcome:
        refusal = self._refusal[1] if self._refusal is not None else None
        return CallsOutcome(tuple(self._failures.values()), refusal, self.exhausted, self._refusals)

    async def seal(self) -> None:
        if not self.sealed:
            self.sealing.set_result(None)
        for call in tuple(self._active):
            call.break_off()
        await self._idle.wait()


def sealed_problem() -> Problem:
    return Problem(400, "session_sealed", "this session has ended; the gateway serves no further calls")


class CallWait:
    """One call, as its session's `WaitClock` sees it."""

    def __init__(self, clock: WaitClock, now_s: float) -> None:
        self._clock = clock
        self.state: Literal["engine", "paused", "sampled"] = "engine"
        self.heard_s = now_s
        """When it arrived or its last token came."""
        self.arrived_s = now_s
        self.first_s: float | None = None
        """When its first token came."""

    @property
    def has_tokens(self) -> bool:
        return self.state == "sampled"

    def tokens_came(self) -> None:
        self.heard_s = self._clock.now_s()
        if self.first_s is None:
            self.first_s = self.heard_s
        if self.state != "sampled":
            self._clock.count()
            self.state = "sampled"

    @contextmanager
    def paused(self) -> Generator[None]:
        self._clock.count()
        self.state = "paused"
        try:
            yield
        finally:
            self._clock.count()
            self.state = "engine"


class WaitClock:
    """How long a session waits for its model, which is not charged to the harness.

    A call waits from its arrival to its first token: for the renderer, a pause, the engine's queue. A session
    waits while at least one call waits and none is being sampled.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._counted_s = now_s()
        self._calls: set[CallWait] = set()
        self._paused_s = 0.0
        self._engine_s = 0.0

    @contextmanager
    def call(self) -> Generator[CallWait]:
        self.count()
        call = CallWait(self, self.now_s())
        self._calls.add(call)
        try:
            yield call
        finally:
            self.count()
            self._calls.remove(call)

    def count(self) -> None:
        """Adds the time since the last change; called before each change."""
        now_s = self.now_s()
        passed_s, self._counted_s = now_s - self._counted_s, now_s
        states = {call.state for call in self._calls}
        if "sampled" in states:
            return
        if "paused" in states:
            self._paused_s += passed_s
        elif states:
            self._engine_s += passed_s

    @property
    def last_token_s(self) -> float:
        """When a call that is under way last got a token; -inf: none has."""
        return max((call.heard_s for call in self._calls if call.first_s is not None), default=float("-inf"))

    def read(self) -> Waits:
        self.count()
        now_s = self.now_s()
        silent_s = min((now_s - call.heard_s for call in self._calls), default=0.0)
        return Waits(self._paused_s, self._engine_s, silent_s)


class SlotTable:
    """All slots of a node's gateway; implements the session's `Slots` port."""

    def __init__(self, journal: Journal, model: str, context_tokens: int) -> None:
        self._journal = journal
        self._model = model
        self._context_tokens = context_tokens
        self._by_key: dict[str, OpenSlot] = {}
        self._by_session: dict[str, OpenSlot] = {}
        self.base_url = ""
        """Set when the gateway listens, as are the listeners."""
        self.listeners: SessionListeners | None = None

    def find(self, key: str) -> OpenSlot | None:
        return self._by_key.get(key)

    def of_session(self, session_id: str) -> OpenSlot | None:
        return self._by_session.get(session_id)

    async def open(self, lease: Lease, profile: CallProfile, sockets: SessionSockets = NO_SOCKETS) -> Slot:
        slot = OpenSlot(lease, profile, CallForest(profile.matching))
        base_url = self.base_url
        if sockets != NO_SOCKETS:
            assert self.listeners is not None, "a gateway that serves sessions has a server"
            base_url = await self.listeners.open(slot.session_id, sockets) or base_url
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

    def key_of(self, session_id: str) -> str | None:
        slot = self._by_session.get(session_id)
        return None if slot is None else slot.key

    def waited_s(self, session_id: str) -> float:
        """So far; 0.0 if the session has no slot, not yet or no longer."""
        slot = self._by_session.get(session_id)
        return 0.0 if slot is None else slot.waits.read().total_s

    @property
    def last_token_s(self) -> float:
        """Of all sessions, by the monotonic clock."""
        return max((slot.waits.last_token_s for slot in self._by_session.values()), default=float("-inf"))

    async def close(self, session_id: str) -> None:
        slot = self._by_session.pop(session_id, None)
        if slot is not None:
            try:
                await slot.seal()
            finally:
                del self._by_key[slot.key]
                if self.listeners is not None:
                    await self.listeners.close(session_id)
