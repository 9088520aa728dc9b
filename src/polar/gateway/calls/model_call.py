"""One model call under way: its request, its limits, what the engine has sampled so far, and who waits for it.

A call belongs to its session and not to a connection. A harness that loses its connection and asks again joins the
call it began; a call without listeners is broken off after `linger_s`. `call_service.py` leads it through its
life.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager
from typing import Literal

import msgspec

from polar.engines.base import Piece
from polar.errors import (
    ChatRefused,
    ContextOverflow,
    EngineBusy,
    EngineDefect,
    EngineError,
    PolarError,
    SchemaRefused,
    failure_of,
)
from polar.gateway.calls.policy_gate import Versions
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.problems import Overflow, Problem
from polar.gateway.slots import CallWait, OpenSlot
from polar.tokens.forest import Prompt
from polar.types import CallKind, Delta, EndpointUsage, Failure, Sampling, TokenIds, logprobs, token_ids

GRACE_S = 0.1
"""How long a stream waits for its first token after admission. An engine that refuses does so at once, and an HTTP
status says more to a harness than a broken stream."""
PIECES_AT_LIMIT = 16
"""How many empty pieces an engine may send after the last token it was asked for."""

LOGGER = logging.getLogger("polar.gateway")


class ModelCall:
    """Only the event loop's thread touches it."""

    wait: CallWait
    """How long it waits for its first token; set when its work begins."""
    sampling: Sampling
    """The task's, with the values the task leaves to the harness. Set with the fields below on admission."""
    usage: EndpointUsage | None = None
    """Set if the engine gives no token ids, which leaves `ids` empty."""

    def __init__(
        self,
        slot: OpenSlot,
        request: ChatRequest,
        *,
        dialect: str,
        kind: CallKind,
        key: bytes,
        linger_s: float = 0.0,
    ) -> None:
        """`key`: equal for a request and its retry."""
        self.slot = slot
        self.request = request
        self.dialect = dialect
        self.kind: CallKind = kind
        self.key = key
        self.arrived = time.time()

        self.reply: Reply | None = None
        """Begun on admission; complete when the call is in the journal."""
        self.stop: tuple[str, ...] = ()
        self.max_tokens = 0
        self.seed = 0

        self.prompt: Prompt | None = None
        """Known on admission in token mode, with the engine's first piece in chat mode."""
        self.rendered = 0.0
        """Unix seconds, when the prompt was known."""
        self.ids = token_ids()
        self.logprobs = logprobs()
        self.given = 0
        """Tokens the engine returned, including those behind the end of the reply, which `ids` leaves out."""
        self.finish_reason: Literal["stop", "length", "aborted"] | None = None
        self.evaluated_tokens: int | None = None
        self.versions = Versions()
        self.reasoning_tokens = 0
        self.stop_sequence = ""
        self._pieces_at_limit = 0

        self.deltas: list[Delta] = []
        """The reply so far, as listeners get it."""
        self._tool_calls = 0
        """In the reply so far."""
        self.opened = False
        """Whether a stream may begin: the first words are there, the call has ended, or `GRACE_S` is over."""
        self.replied = False
        """Whether the reply is complete."""
        self.problem: Problem | None = None
        """Set instead when there will be no reply."""
        self.broken_off = False
        """No retry can join any more, though the work may still be ending."""
        self._work: asyncio.Task[None] | None = None
        self._breakable = True
        self._listeners = 0
        self._linger_s = linger_s
        self._farewell: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    @property
    def call_id(self) -> str:
        assert self.reply is not None, "a call gets its id on admission"
        return self.reply.reply_id

    # What the engine samples

    def begin(self, prompt: Prompt) -> None:
        self.prompt, self.rendered = prompt, time.time()

    def within_limit(self, piece: Piece) -> TokenIds:
        """The ids of a piece without those beyond `max_tokens`."""
        return piece.ids[: max(0, self.max_tokens - self.given)]

    def take(self, piece: Piece, count: int) -> None:
        """Keeps the first `count` ids of a piece."""
        if piece.ids:
            self.wait.tokens_came()
        self.given += len(piece.ids)
        self.ids.extend(piece.ids[:count])
        self.logprobs.extend(piece.logprobs[:count])
        self.finish_reason = piece.finish_reason
        self.evaluated_tokens = piece.evaluated_tokens
        self.versions.take(piece, count)

    def check_limit(self, piece: Piece) -> None:
        """Raises `EngineDefect` for an engine that samples past the limit. The tokens up to it are kept."""
        if self.given > self.max_tokens:
            raise EngineDefect(f"the engine returned {self.given} tokens or more for a limit of {self.max_tokens}")
        if piece.finish_reason is None and self.given == self.max_tokens:
            self._pieces_at_limit += 1
            if self._pieces_at_limit > PIECES_AT_LIMIT:
                raise EngineDefect(f"the engine does not end a reply at its limit of {self.max_tokens} tokens")

    def check_end(self) -> None:
        if self.finish_reason is None:
            raise EngineDefect("the engine ended without a finish reason")
        if self.finish_reason == "aborted":
            raise EngineError("the engine broke the generation off")

    def defect(self) -> Failure | None:
        """The failure of a whole reply that has no logprob at all. Single missing logprobs only drop their
        tokens."""
        if not self.ids or not all(map(math.isnan, self.logprobs)):
            return None
        message = f"the engine returned no logprob for any of the {len(self.ids)} tokens of a reply"
        return Failure(where="engine", type="MissingLogprobs", message=message)

    # Its work, and how it ends

    def start(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work)

    def admitted(self, reply: Reply) -> None:
        """`reply`: as far as it is known. Wakes no listener: they wait for the first words, or for the end of
        `GRACE_S`."""
        self.reply = reply
        self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._wake_listeners)

    def say(self, deltas: Iterable[Delta], *, last: bool = False) -> None:
        """Adds to the reply, and gives tool calls their ids. `last`: listeners get it with the end of the reply,
        which is near."""
        before = len(self.deltas)
        self.deltas.extend(map(self._with_id, deltas))
        if len(self.deltas) > before and not last:
            self._wake_listeners()

    def _with_id(self, delta: Delta) -> Delta:
        """A tool call gets an id of characters that every provider allows."""
        if delta.tool_call is None:
            return delta
        call_id = f"call_{self.call_id.replace('.', '_')}_{self._tool_calls}"
        self._tool_calls += 1
        return Delta(tool_call=msgspec.structs.replace(delta.tool_call, call_id=call_id))

    def sampled(self) -> None:
        """The engine has ended. From here on the call is only journalled, which nothing may break off."""
        self._breakable = False

    def finish(self, reply: Reply) -> None:
        self.reply, self.replied = reply, True
        self._end()

    def fail(self, problem: Problem) -> None:
        self.problem = problem
        self._end()

    def break_off(self) -> None:
        if self._breakable and self._work is not None:
            self._breakable, self.broken_off = False, True
            self._work.cancel()

    @property
    def done(self) -> bool:
        return self.replied or self.problem is not None

    # Listeners

    @property
    def is_listened_to(self) -> bool:
        return self._listeners > 0

    @property
    def joinable(self) -> bool:
        return self.problem is None and not self.broken_off

    @property
    def news(self) -> asyncio.Future[None]:
        """Done at the next change. Read the state first, then wait for this without an `await` in between."""
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
        self._wake_listeners()

    def _wake_listeners(self) -> None:
        self.opened = True
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)


def check_piece(piece: Piece) -> None:
    """What the engine port promises, checked where an engine's values enter."""
    if len(piece.ids) != len(piece.logprobs):
        raise EngineDefect(f"the engine returned {len(piece.ids)} ids and {len(piece.logprobs)} logprobs")


@contextmanager
def engine_failures(slot: OpenSlot) -> Generator[None]:
    """Turns whatever an engine raises into a `Problem`. An engine is a plug-in: it may raise anything."""
    try:
        yield
    except Problem:
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) and task.cancelling():
            raise  # the gateway broke the call off; any other cancellation came from inside the engine
        raise _engine_failed(slot, error) from error
    except (Exception, SystemExit) as error:
        raise _engine_failed(slot, error) from error


def call_lost(slot: OpenSlot, where: str, error: BaseException) -> Problem:
    """A fault of our own, after which there is no reply."""
    _log(slot, where, error)
    problem = Problem(500, "gateway_error", "the gateway lost this call; the session's result holds the cause")
    return _caused(problem, failure_of(where, error))


def _engine_failed(slot: OpenSlot, error: BaseException) -> Problem:
    if not isinstance(error, PolarError):
        _log(slot, "engine", error)
    failure = failure_of("engine", error)
    message = f"the engine failed: {failure.message}"
    if isinstance(error, ContextOverflow):
        return Overflow(error.prompt_tokens, error.context_tokens)
    if isinstance(error, EngineBusy):
        busy = Problem(429, "engine_busy", message, retry=True, retry_after_s=error.retry_after_s)
        return _caused(busy, failure)
    if isinstance(error, SchemaRefused):
        return Problem(400, "invalid_request", message)
    if isinstance(error, ChatRefused):
        return Problem(400, "not_renderable", message, param="messages")
    return _caused(Problem(502, "engine_error", message, retry=True), failure)


def _log(slot: OpenSlot, where: str, error: BaseException) -> None:
    """The log has the traceback; the harness and the session's result get one sentence."""
    extra = {"session_id": slot.session_id}
    LOGGER.error("session %s: a call failed in the %s", slot.session_id, where, exc_info=error, extra=extra)


def _caused(problem: Problem, failure: Failure) -> Problem:
    problem.failure = failure
    return problem
