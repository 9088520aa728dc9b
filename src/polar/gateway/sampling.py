"""What an engine gave for one call so far, and what its failures mean to the harness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from polar.engines.base import Piece
from polar.errors import (
    ContextOverflow,
    ConversationRefused,
    EngineBusy,
    EngineDefect,
    EngineError,
    SchemaRefused,
    failure_of,
)
from polar.gateway.dialects.base import Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.prompting import PreparedPrompt
from polar.types import PolicySpan, logprobs, token_ids


class Sampled:
    def __init__(self) -> None:
        self.prompt: PreparedPrompt | None = None
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

    def begin(self, prompt: PreparedPrompt) -> None:
        self.prompt, self.rendered = prompt, time.time()

    def take(self, piece: Piece, count: int) -> None:
        self.given += len(piece.ids)
        self.ids.extend(piece.ids[:count])
        self.logprobs.extend(piece.logprobs[:count])
        self.finish_reason = piece.finish_reason
        self.evaluated_tokens = piece.evaluated_tokens
        self.versions.take(piece, count)

    def check_end(self) -> None:
        if self.finish_reason is None:
            raise EngineDefect("the engine ended without a finish reason")
        if self.finish_reason == "aborted":
            raise EngineError("the engine broke the generation off")


class Versions:
    """Which policy sampled which ids of one reply."""

    def __init__(self) -> None:
        self.began = ""
        """What the gateway was told to be generating with when the call began."""
        self.updated_within = False
        """That changed before the call ended."""
        self._spans: list[PolicySpan] = []
        self._size = 0

    def take(self, piece: Piece, count: int) -> None:
        if count and piece.policy_version:
            self._add(piece.policy_version, self._size, count)
        self._size += count
        if piece.policy_spans:
            self._spans = []
            for span in piece.policy_spans:  # the engine counts what was cut off too
                length = min(span.length, self._size - span.start)
                if length > 0:
                    self._add(span.version, span.start, length)

    def _add(self, version: str, start: int, length: int) -> None:
        last = self._spans[-1] if self._spans else None
        if last and last.version == version and last.start + last.length == start:
            self._spans[-1] = PolicySpan(version, last.start, last.length + length)
        else:
            self._spans.append(PolicySpan(version, start, length))

    @property
    def first(self) -> str:
        return self._spans[0].version if self._spans else self.began

    @property
    def spans(self) -> tuple[PolicySpan, ...]:
        """Empty where one version covers the reply."""
        return tuple(self._spans) if len(self._spans) > 1 else ()

    @property
    def unknown(self) -> bool:
        """The policy changed, and the engine does not say at which token."""
        return self.updated_within and not self._spans


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
    except Exception as error:
        raise _engine_failed(slot, error) from error


def _engine_failed(slot: OpenSlot, error: BaseException) -> Problem:
    slot.engine_failure = failure_of("engine", error)
    message = f"the engine failed: {slot.engine_failure.message}"
    if isinstance(error, ContextOverflow):
        return Overflow(error.prompt_tokens, error.context_tokens)
    if isinstance(error, EngineBusy):
        return Problem(429, "engine_busy", message, retry=True, retry_after_s=error.retry_after_s)
    if isinstance(error, SchemaRefused):
        return Problem(400, "invalid_request", message)
    if isinstance(error, ConversationRefused):
        return Problem(400, "not_renderable", message, param="messages")
    return Problem(502, "engine_error", message, retry=True)


def call_lost(slot: OpenSlot, where: str, error: Exception) -> Problem:
    slot.engine_failure = failure_of(where, error)
    return Problem(500, "gateway_error", "the gateway could not keep this call; the session's result says why")
