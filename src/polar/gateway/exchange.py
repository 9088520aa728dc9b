"""One model call from start to end: request, tokens, engine, journal, reply.

All that can fail with a status fails in `admit`, before a byte of the reply is sent. A call is in the journal
before the last event of its reply leaves, so a harness never acts on a reply we could lose.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from contextlib import aclosing
from typing import Any

import msgspec

from polar.engines.base import Engine, EngineInfo, GenerateRequest, Piece
from polar.errors import EngineDefect, EngineError, failure_of
from polar.gateway.dialects.base import ChatRequest, Problem, Reply
from polar.gateway.policy import PolicyGate
from polar.gateway.slots import OpenSlot
from polar.store.journal import Journal
from polar.tokens.base import Renderer
from polar.tokens.forest import CallForest, Place, PreparedPrompt
from polar.types import (
    Call,
    CallTimes,
    FinishReason,
    Logprobs,
    Message,
    TokenIds,
    ToolCall,
    logprobs,
    token_ids,
)

SHORT_CHARACTERS = 4096
SHORT_TOKENS = 1024
"""Texts up to this size are rendered and read on the event loop: about a millisecond at most, where the way to a
thread and back alone costs a tenth of one."""


class Admitted(msgspec.Struct, frozen=True):
    """A request that will be sampled."""

    call_id: str
    request: ChatRequest
    prompt: PreparedPrompt
    max_tokens: int
    seed: int
    arrived: float
    rendered: float
    pieces: list[Piece]
    """What the engine gave so far; kept even if the generation is broken off."""


class Exchange:
    """Samples calls for every slot of one gateway."""

    def __init__(self, renderer: Renderer, engine: Engine, info: EngineInfo, journal: Journal, model: str) -> None:
        self._renderer = renderer
        self._engine = engine
        self._info = info
        self._journal = journal
        self._rendering = asyncio.Lock()
        """Tokenizers are not safe to share between threads at the same moment."""
        self.model = model
        self.gate = PolicyGate()

    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        arrived = time.time()
        slot.check()
        prompt = await self._prepare(slot, request)
        size, context = len(prompt.prompt_ids), self._info.context_tokens
        if size >= context:
            raise Problem(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {context} tokens. "
                f"However, your messages resulted in {size} tokens.",
                param="messages",
            )
        number = slot.admit()  # only now: a request that is refused costs nothing
        session = slot.lease.session
        return Admitted(
            call_id=f"{session.session_id}.{session.attempt}.{number}",
            request=request,
            prompt=prompt,
            max_tokens=slot.reply_limit(request.max_tokens, context - size),
            seed=_seed(slot, number),
            arrived=arrived,
            rendered=time.time(),
            pieces=[],
        )

    async def _prepare(self, slot: OpenSlot, request: ChatRequest) -> PreparedPrompt:
        try:
            async with slot.lock, self._rendering:
                place = slot.forest.find(request.messages, request.tools)
                bridged = await _bridge(slot.forest, place)
                return bridged or await asyncio.to_thread(slot.forest.render, place)
        except Exception as error:  # a renderer is a plug-in, and the same request would fail again
            slot.engine_failure = failure_of("renderer", error)
            message = "the model's template cannot render this conversation"
            raise Problem(400, "not_renderable", message, param="messages") from error

    async def sample(self, slot: OpenSlot, admitted: Admitted) -> None:
        """Fills `admitted.pieces`. Raises `Problem` when the engine fails; the slot remembers why."""
        request = GenerateRequest(
            prompt_ids=admitted.prompt.prompt_ids,
            max_tokens=admitted.max_tokens,
            sampling=slot.lease.task.sampling,
            stop_ids=self._renderer.stop_ids,
            session_id=slot.session_id,
            seed=admitted.seed,
        )
        version = await self.gate.enter()
        try:
            async with aclosing(self._engine.generate(request)) as pieces:
                async for piece in pieces:
                    if not piece.policy_version and version:
                        piece = msgspec.structs.replace(piece, policy_version=version)
                    admitted.pieces.append(piece)
            _check(admitted.pieces)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise  # we broke it off; otherwise something inside the engine was cancelled
            raise _engine_failed(slot, error) from error
        except Exception as error:  # an engine is a plug-in: whatever it raises is the engine's failure
            raise _engine_failed(slot, error) from error
        slot.engine_failure = None

    async def commit(self, slot: OpenSlot, admitted: Admitted, dialect: str) -> Reply:
        """Journals the call and makes it known to later ones. Shielded: a call that was sampled is kept."""
        return await asyncio.shield(self._commit(slot, admitted, dialect, aborted=False))

    async def abandon(self, slot: OpenSlot, admitted: Admitted, dialect: str) -> None:
        """Keeps what was sampled of a reply that nobody will get. Without a token there is nothing to keep."""
        if any(piece.ids for piece in admitted.pieces):
            await asyncio.shield(self._commit(slot, admitted, dialect, aborted=True))

    async def delivered(self, slot: OpenSlot, reply: Reply) -> None:
        async with slot.lock:
            slot.forest.mark_received(reply.reply_id)
        await self._journal.mark_received(reply.reply_id)

    async def _commit(self, slot: OpenSlot, admitted: Admitted, dialect: str, *, aborted: bool) -> Reply:
        ids = _sampled_ids(admitted.pieces)
        slot.sampled_tokens += len(ids)
        unreadable: Exception | None = None
        try:
            response = await self._parse(admitted, ids)
        except Exception as error:  # a renderer is a plug-in; what was sampled is kept all the same
            response, unreadable = Message(role="assistant"), error
        finish = "aborted" if aborted or unreadable else _finish(admitted, response)
        call = self._call(slot, admitted, dialect, response, finish)
        try:
            async with slot.lock:
                await self._journal.append_call(call)
                slot.forest.add(call)
        except Exception as error:
            raise _call_lost(slot, "journal", error) from error
        if unreadable and not aborted:
            raise _call_lost(slot, "renderer", unreadable) from unreadable
        cached = call.prompt_tokens - (
            call.evaluated_tokens if call.evaluated_tokens is not None else call.prompt_tokens
        )
        return Reply(
            reply_id=call.call_id,
            created=int(admitted.arrived),
            model=self.model,
            message=response,
            finish_reason=call.finish_reason,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=max(0, cached),
        )

    async def _parse(self, admitted: Admitted, ids: TokenIds) -> Message:
        prompt_ids = admitted.prompt.prompt_ids
        async with self._rendering:
            if len(ids) <= SHORT_TOKENS:
                parsed = self._renderer.parse(prompt_ids, ids)
            else:
                parsed = await asyncio.to_thread(self._renderer.parse, prompt_ids, ids)
        numbered = [
            ToolCall(name=call.name, arguments=call.arguments, call_id=f"call_{admitted.call_id}_{index}")
            for index, call in enumerate(parsed.tool_calls)
        ]
        return msgspec.structs.replace(parsed, tool_calls=tuple(numbered))

    def _call(
        self, slot: OpenSlot, admitted: Admitted, dialect: str, response: Message, finish: FinishReason
    ) -> Call:
        prompt, request, pieces = admitted.prompt, admitted.request, admitted.pieces
        shared = slot.forest.shared_items(prompt.parent_id, request.items)
        auxiliary = slot.profile.auxiliary_without_tools and not request.tools
        return Call(
            call_id=admitted.call_id,
            session_id=slot.session_id,
            parent_id=prompt.parent_id,
            continues=prompt.continues,
            new_prompt_ids=prompt.new_prompt_ids,
            completion_ids=_sampled_ids(pieces),
            logprobs=_sampled_logprobs(pieces),
            prompt_digest=prompt.prompt_digest,
            prompt_tokens=len(prompt.prompt_ids),
            finish_reason=finish,
            new_messages=prompt.new_messages,
            response=response,
            tools=None if prompt.parent_id else request.tools,
            new_items=request.items[shared:],
            shared_items=shared,
            dialect=dialect,
            kind="auxiliary" if auxiliary else "agent",
            sampling=_sampling(slot, admitted),
            engine=f"{self._info.name}/{self._info.model}",
            logprob_mode=self._info.logprob_mode,
            times=CallTimes(arrived=admitted.arrived, rendered=admitted.rendered, sampled=time.time()),
            policy_version=pieces[-1].policy_version if pieces else "",
            break_reason=prompt.break_reason,
            tolerant=prompt.tolerant,
            evaluated_tokens=pieces[-1].evaluated_tokens if pieces else None,
        )


async def _bridge(forest: CallForest, place: Place) -> PreparedPrompt | None:
    if place.parent is None or place.new_characters <= SHORT_CHARACTERS:
        return forest.bridge(place)
    return await asyncio.to_thread(forest.bridge, place)


def _sampled_ids(pieces: list[Piece]) -> TokenIds:
    ids = token_ids()
    for piece in pieces:
        ids.extend(piece.ids)
    return ids


def _sampled_logprobs(pieces: list[Piece]) -> Logprobs:
    values = logprobs()
    for piece in pieces:
        values.extend(piece.logprobs)
    return values


def _engine_failed(slot: OpenSlot, error: BaseException) -> Problem:
    slot.engine_failure = failure_of("engine", error)
    return Problem(502, "engine_error", f"the engine failed: {slot.engine_failure.message}", retry=True)


def _call_lost(slot: OpenSlot, where: str, error: Exception) -> Problem:
    slot.engine_failure = failure_of(where, error)
    return Problem(500, "gateway_error", "the gateway could not keep this call; the session's result says why")


def _check(pieces: list[Piece]) -> None:
    """The engine port's promise, checked where its values enter."""
    if not pieces or pieces[-1].finish_reason is None:
        raise EngineDefect("the engine ended without a finish reason")
    if any(len(piece.ids) != len(piece.logprobs) for piece in pieces):
        raise EngineDefect("the engine gave unequal numbers of ids and logprobs")
    if pieces[-1].finish_reason == "aborted":
        raise EngineError("the engine broke the generation off")


def _finish(admitted: Admitted, response: Message) -> FinishReason:
    reason = admitted.pieces[-1].finish_reason or "aborted"
    return "tool_calls" if reason == "stop" and response.tool_calls else reason


def _seed(slot: OpenSlot, number: int) -> int:
    """Its own seed for each call, derived from the task's where it has one, so that samples differ and a run can
    be repeated."""
    base = slot.lease.task.sampling.seed
    if base is None:
        return secrets.randbits(31)
    text = f"{base}/{slot.lease.session.index}/{number}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) & 0x7FFFFFFF


def _sampling(slot: OpenSlot, admitted: Admitted) -> dict[str, Any]:
    used = slot.lease.task.sampling.model_dump(include={"temperature", "top_p", "top_k", "min_p"})
    asked = admitted.request.asked_sampling
    return {
        **used,
        "seed": admitted.seed,
        "max_tokens": admitted.max_tokens,
        **({"asked": asked} if asked else {}),
    }
