"""The engine's part of a call: ids as they are sampled, checked, counted and read.

A reply ends where the engine ends it, or earlier: at a stop text, or when the session's budget of tokens is used
up. Cutting there is exact, because what is sampled later cannot have changed what came before.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Literal

import msgspec

from polar.engines.base import Engine, GenerateRequest, Piece
from polar.errors import ContextOverflow, EngineBusy, EngineDefect, EngineError, SchemaRefused, failure_of
from polar.gateway.admission import Admission, Admitted, in_thread
from polar.gateway.dialects.base import Overflow, Problem
from polar.gateway.generation import Generation
from polar.gateway.policy import PolicyGate
from polar.gateway.slots import OpenSlot
from polar.gateway.speech import Speech
from polar.tokens.base import Renderer
from polar.types import Delta, TokenIds, logprobs, token_ids

SHORT_TOKENS = 1024
"""So many are read on the event loop: about a millisecond."""


class Sampled:
    """What the engine gave so far."""

    def __init__(self) -> None:
        self.given = 0
        """How many ids the engine gave; those after the end of the reply are not kept."""
        self.ids = token_ids()
        self.logprobs = logprobs()
        self.finish_reason: Literal["stop", "length", "aborted"] | None = None
        self.evaluated_tokens: int | None = None
        self.policy_version = ""
        self.reasoning_tokens = 0
        self.stop_sequence = ""

    def take(self, piece: Piece, count: int) -> None:
        self.given += len(piece.ids)
        self.ids.extend(piece.ids[:count])
        self.logprobs.extend(piece.logprobs[:count])
        self.finish_reason = piece.finish_reason
        self.evaluated_tokens = piece.evaluated_tokens
        self.policy_version = piece.policy_version


class Sampler:
    def __init__(self, renderer: Renderer, engine: Engine, admission: Admission, gate: PolicyGate) -> None:
        self._renderer = renderer
        self._engine = engine
        self._rendering = admission.rendering
        self._gate = gate

    async def sample(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> None:
        """Fills `sampled` and tells the listeners what it says. Raises `Problem` when the engine or the renderer
        fails; the slot remembers why."""
        version = await self._gate.enter()
        speech = self._speech(slot, generation, admitted)
        try:
            async with aclosing(self._engine.generate(self._request(slot, generation, admitted))) as pieces:
                async for piece in pieces:
                    if not piece.policy_version and version:
                        piece = msgspec.structs.replace(piece, policy_version=version)
                    generation.say(await self._take(slot, speech, sampled, piece))
                    if len(sampled.ids) < sampled.given:  # cut before the engine's own end
                        sampled.finish_reason = "stop" if speech.stop_sequence else "length"
                        break
            _check_end(sampled)
        except Problem:
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise  # we broke it off; otherwise something inside the engine was cancelled
            raise _engine_failed(slot, error) from error
        except Exception as error:  # an engine is a plug-in: whatever it raises is the engine's failure
            raise _engine_failed(slot, error) from error
        _, said = await self._read(slot, speech, None)
        generation.say(said)
        sampled.reasoning_tokens, sampled.stop_sequence = speech.reasoning_tokens, speech.stop_sequence

    async def _take(self, slot: OpenSlot, speech: Speech, sampled: Sampled, piece: Piece) -> list[Delta]:
        """Keeps a piece up to where the reply ends, and says what it says. A piece that cannot be read is kept
        whole: what was sampled is lost for no reason."""
        ids = _within(slot, piece.ids)
        count, said = len(ids), list[Delta]()
        slot.sampled_tokens += count  # at once: a call beside this one is not to spend them too
        try:
            _check_piece(piece)
            count, said = await self._read(slot, speech, ids)
        finally:
            slot.sampled_tokens -= len(ids) - count
            sampled.take(piece, count)
        return said

    def _request(self, slot: OpenSlot, generation: Generation, admitted: Admitted) -> GenerateRequest:
        return GenerateRequest(
            prompt_ids=admitted.prompt.prompt_ids,
            max_tokens=admitted.max_tokens,
            sampling=admitted.sampling,
            stop_ids=self._renderer.stop_ids,
            session_id=slot.session_id,
            seed=admitted.seed,
            json_schema=generation.asked.request.json_schema,
        )

    def _speech(self, slot: OpenSlot, generation: Generation, admitted: Admitted) -> Speech:
        prompt_ids, raw = admitted.prompt.prompt_ids, generation.asked.request.prompt is not None
        try:
            return Speech(self._renderer, prompt_ids, admitted.call_id, admitted.stop, raw=raw)
        except Exception as error:
            raise call_lost(slot, "renderer", error) from error

    async def _read(self, slot: OpenSlot, speech: Speech, ids: TokenIds | None) -> tuple[int, list[Delta]]:
        """Reads the next ids, or the rest when there are no more."""
        try:
            async with self._rendering:
                if ids is None:
                    return 0, speech.finish()
                if len(ids) <= SHORT_TOKENS:
                    return speech.feed(ids)
                return await in_thread(lambda: speech.feed(ids))
        except Exception as error:  # a renderer is a plug-in
            raise call_lost(slot, "renderer", error) from error


def _within(slot: OpenSlot, ids: TokenIds) -> TokenIds:
    """As many ids as the session's budget still has room for. Calls of one session may run side by side, so this
    is known only now."""
    left = slot.tokens_left
    return ids if left is None else ids[: max(0, left)]


def _check_piece(piece: Piece) -> None:
    """The engine port's promise, checked where its values enter."""
    if len(piece.ids) != len(piece.logprobs):
        raise EngineDefect("the engine gave unequal numbers of ids and logprobs")


def _check_end(sampled: Sampled) -> None:
    if sampled.finish_reason is None:
        raise EngineDefect("the engine ended without a finish reason")
    if sampled.finish_reason == "aborted":
        raise EngineError("the engine broke the generation off")


def _engine_failed(slot: OpenSlot, error: BaseException) -> Problem:
    slot.engine_failure = failure_of("engine", error)
    message = f"the engine failed: {slot.engine_failure.message}"
    if isinstance(error, ContextOverflow):
        return Overflow(error.prompt_tokens, error.context_tokens)
    if isinstance(error, EngineBusy):
        return Problem(429, "engine_busy", message, retry=True, retry_after_s=error.retry_after_s)
    if isinstance(error, SchemaRefused):
        return Problem(400, "invalid_request", message)
    return Problem(502, "engine_error", message, retry=True)


def call_lost(slot: OpenSlot, where: str, error: Exception) -> Problem:
    slot.engine_failure = failure_of(where, error)
    return Problem(500, "gateway_error", "the gateway could not keep this call; the session's result says why")
