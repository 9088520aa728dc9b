"""What an engine gave for one call so far, and what its failures mean to the harness."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

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
from polar.gateway.calls.waits import CallWait
from polar.gateway.dialects.base import Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.forest import Prompt
from polar.types import Failure, PolicySpan, TokenIds, logprobs, token_ids

PIECES_AT_LIMIT = 16
"""So many pieces an engine may still give when it has sampled all that was asked for and before it ends."""

LOGGER = logging.getLogger("polar.gateway")


class Sampled:
    def __init__(self, wait: CallWait | None = None) -> None:
        """`wait` is told of each token."""
        self._wait = wait
        self._max_tokens = 0
        self._pieces_at_limit = 0
        self.prompt: Prompt | None = None
        """Set before anything is sampled from it."""
        self.rendered = 0.0
        """Unix seconds, when the prompt was known."""
        self.given = 0
        """How many ids the engine gave; those after the end of the reply are not kept."""
        self.ids = token_ids()
        self.logprobs = logprobs()
        self.finish_reason: Literal["stop", "length", "aborted"] | None = None
        self.evaluated_tokens: int | None = None
        self.versions = Versions()
        self.reasoning_tokens = 0
        self.stop_sequence = ""

    def begin(self, prompt: Prompt, max_tokens: int) -> None:
        self.prompt, self.rendered = prompt, time.time()
        self._max_tokens = max_tokens

    def within_limit(self, piece: Piece) -> TokenIds:
        """The ids of a piece, without those that are more than was asked for."""
        return piece.ids[: max(0, self._max_tokens - self.given)]

    def check_limit(self, piece: Piece) -> None:
        """An engine that goes on past the limit is ended there. What was sampled up to it is kept, as aborted."""
        if self.given > self._max_tokens:
            raise EngineDefect(
                f"the engine gave {self.given} tokens or more where {self._max_tokens} were asked for"
            )
        if piece.finish_reason is None and self.given == self._max_tokens:
            self._pieces_at_limit += 1
            if self._pieces_at_limit > PIECES_AT_LIMIT:
                raise EngineDefect(f"the engine does not end a reply at its limit of {self._max_tokens} tokens")

    def take(self, piece: Piece, count: int) -> None:
        if self._wait is not None and piece.ids:
            self._wait.tokens_came()
        self.given += len(piece.ids)
        self.ids.extend(piece.ids[:count])
        self.logprobs.extend(piece.logprobs[:count])
        self.finish_reason = piece.finish_reason
        self.evaluated_tokens = piece.evaluated_tokens
        self.versions.take(piece, count)

    def defect(self) -> Failure | None:
        """Of a reply that came whole: single tokens without a logprob are dropped, a reply without any is lost."""
        if not self.ids or not all(map(math.isnan, self.logprobs)):
            return None
        message = f"the engine gave none of the {len(self.ids)} tokens of a reply a logprob"
        return Failure(where="engine", type="MissingLogprobs", message=message)

    def check_end(self) -> None:
        if self.finish_reason is None:
            raise EngineDefect("the engine ended without a finish reason")
        if self.finish_reason == "aborted":
            raise EngineError("the engine broke the generation off")


class Versions:
    """Which policy sampled which ids of one reply. Where the engine tells it token by token, that is so; a version
    told for a piece is believed only where there was no other."""

    def __init__(self) -> None:
        self.began = ""
        """What the gateway was told to be generating with when the call began."""
        self.updated_within = False
        """That changed before the call ended."""
        self._of_pieces: set[str] = set()
        self._told: tuple[PolicySpan, ...] = ()
        self._size = 0

    def take(self, piece: Piece, count: int) -> None:
        self._size += count
        if count:
            self._of_pieces.add(piece.policy_version)
        if piece.policy_spans:
            # The engine counts what was cut off too.
            within = [span for span in piece.policy_spans if span.start < self._size]
            cut = (PolicySpan(s.version, s.start, min(s.length, self._size - s.start)) for s in within)
            self._told = tuple(cut)

    @property
    def first(self) -> str:
        if self._told:
            return self._told[0].version
        named = next(iter(self._of_pieces)) if len(self._of_pieces) == 1 else ""
        return named or self.began

    @property
    def spans(self) -> tuple[PolicySpan, ...]:
        """Empty where one version covers the reply."""
        return self._told if len(self._told) > 1 else ()

    @property
    def unknown(self) -> bool:
        """There was more than one version, and the engine does not say which token is whose."""
        if self._told:
            return sum(span.length for span in self._told) != self._size
        return self.updated_within or len(self._of_pieces) > 1


def check_piece(piece: Piece) -> None:
    """The engine port's promise, checked where its values enter."""
    if len(piece.ids) != len(piece.logprobs):
        raise EngineDefect("the engine gave unequal numbers of ids and logprobs")


@contextmanager
def engine_failures(slot: OpenSlot) -> Generator[None]:
    """Whatever an engine raises is the engine's failure, and becomes a `Problem`: it is a plug-in."""
    try:
        yield
    except Problem:
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) and task.cancelling():
            raise  # we broke it off; otherwise something inside the engine was cancelled
        raise _engine_failed(slot, error) from error
    except (Exception, SystemExit) as error:
        raise _engine_failed(slot, error) from error


def _engine_failed(slot: OpenSlot, error: BaseException) -> Problem:
    if not isinstance(error, PolarError):
        log_unexpected(slot, "engine", error)
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


def log_unexpected(slot: OpenSlot, where: str, error: BaseException) -> None:
    """With the traceback and the session; the harness and the session's result get a sentence."""
    told = {"session_id": slot.session_id}
    LOGGER.error("session %s: a call failed at the %s", slot.session_id, where, exc_info=error, extra=told)


def call_lost(slot: OpenSlot, where: str, error: BaseException) -> Problem:
    log_unexpected(slot, where, error)
    message = "the gateway could not keep this call; the session's result says why"
    return _caused(Problem(500, "gateway_error", message), failure_of(where, error))


def _caused(problem: Problem, failure: Failure) -> Problem:
    problem.failure = failure
    return problem
