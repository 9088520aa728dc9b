"""The life of a model call: receive, attach, admit, sample, journal, deliver.

A call is in the journal before the last event of its reply leaves, so a harness never acts on a reply that a crash
could lose. Tokens of a reply that is broken off are journalled too, as aborted.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from pydantic import ValidationError

from polar.engines.base import EngineInfo
from polar.gateway.calls.ended_call import ended_call
from polar.gateway.calls.final_message import final_reply
from polar.gateway.calls.model_call import ModelCall, call_lost
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.problems import Overflow, Problem
from polar.gateway.slots import OpenSlot, sealed_problem
from polar.store.journal import Journal
from polar.tokens.forest import Prompt
from polar.tokens.replies.reply_text import message_of
from polar.types import (
    Call,
    CallKind,
    CallTimes,
    EndedCall,
    EndpointUsage,
    EngineUse,
    FinishReason,
    Message,
    Sampling,
)

LONGEST_TOKEN_CHARACTERS = 512
"""No published vocabulary has a longer token; the longest known are runs of one character, 256 at most."""


class Mode(Protocol):
    """Who renders prompts and parses replies: the gateway (token mode) or the engine (chat mode)."""

    @property
    def takes_images(self) -> bool: ...

    async def attach(self, slot: OpenSlot, request: ChatRequest) -> Prompt | int:
        """The request's prompt, attached to the call it continues; in chat mode only its number of tokens. Changes
        nothing. Raises `Problem`."""
        ...

    async def sample(self, call: ModelCall) -> None:
        """Samples the reply into the call. Raises `Problem` when the engine or the renderer fails."""
        ...


class UseCounter:
    """What the calls of a gateway did since it started, in numbers that only grow."""

    def __init__(self) -> None:
        self._calls = self._failed = self._sampled = 0
        self._prompt_tokens = self._sampled_tokens = 0
        self._first_token_s = self._call_s = 0.0

    def count(self, call: ModelCall) -> None:
        """When it has ended. A request that was refused, or answered without the engine, is none of its calls."""
        has_failed = call.problem is not None and call.problem.failure is not None
        if not has_failed and (call.reply is None or not call.reply.captured):
            return
        self._calls += 1
        self._failed += has_failed
        if call.wait.first_s is None or call.reply is None:
            return
        self._sampled += 1
        self._prompt_tokens += call.reply.prompt_tokens
        self._sampled_tokens += call.given or (call.usage and call.usage.completion_tokens) or 0
        self._first_token_s += call.wait.first_s - call.wait.arrived_s
        self._call_s += call.wait.heard_s - call.wait.arrived_s

    def read(self) -> EngineUse:
        return EngineUse(
            calls=self._calls,
            failed_calls=self._failed,
            sampled_calls=self._sampled,
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=self._sampled_tokens,
            first_token_s=self._first_token_s,
            call_s=self._call_s,
        )


class CallService:
    """Serves the model calls of every slot of one gateway."""

    def __init__(self, mode: Mode, gate: PolicyGate, info: EngineInfo, journal: Journal, model: str) -> None:
        self._mode = mode
        self._gate = gate
        self._info = info
        self._journal = journal
        self.model = model
        self.context_tokens = info.context_tokens
        self.use = UseCounter()
        self._watchers: list[Callable[[EndedCall], None]] = []

    def watch(self, watcher: Callable[[EndedCall], None]) -> None:
        """Called when a call has ended, before its session can; must not raise."""
        self._watchers.append(watcher)

    def receive(
        self,
        slot: OpenSlot,
        request: ChatRequest,
        dialect: str,
        kind: CallKind = "agent",
        attribution: tuple[str, ...] = (),
        linger_s: float = 0.0,
    ) -> ModelCall:
        """The call that answers a request: a new one, or the one that the request is a retry of. Without listeners
        it goes on for `linger_s`."""
        key = retry_key(request, dialect, attribution)
        earlier = slot.unreceived.get(key)
        if earlier is not None and earlier.joinable:
            return earlier
        call = ModelCall(slot, request, dialect=dialect, kind=kind, key=key, linger_s=linger_s)
        slot.unreceived[key] = call
        call.start(self._run(call))
        return call

    async def _run(self, call: ModelCall) -> None:
        slot = call.slot
        with slot.serving(call), slot.waits.call() as call.wait:
            try:
                call.finish(await self._answer(call))
            except Problem as problem:
                call.fail(problem)
            except asyncio.CancelledError:
                call.fail(sealed_problem() if slot.sealed else _client_left(call))
            except (Exception, SystemExit) as error:  # also a plug-in's: none may end the node
                call.fail(call_lost(slot, "gateway", error))
            if call.problem is not None:
                slot.failed(call, call.problem)
                slot.forget(call)
            self.use.count(call)
            for watcher in self._watchers:
                watcher(ended_call(call, f"{self._info.name}/{self._info.model}"))

    async def _answer(self, call: ModelCall) -> Reply:
        try:
            await self._admit(call)
        except Problem as refusal:
            final = final_reply(call, refusal, self.model)
            if final is None:
                raise
            return final
        try:
            await self._sample(call)
        except (Problem, asyncio.CancelledError):
            call.sampled()
            if not (call.ids or call.deltas):
                call.slot.calls_unsampled += 1
                raise
            call.finish_reason = "aborted"
            await self._keep(call)
            raise
        call.sampled()
        return _reply(call, await self._keep(call))

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        """The tokens of a request's prompt. Samples, records and charges nothing."""
        return _size(await self._attach(slot, request))

    async def _attach(self, slot: OpenSlot, request: ChatRequest) -> Prompt | int:
        if not self._mode.takes_images and any(message.images for message in request.messages):
            text = "this model takes text only, and the message holds an image"
            raise Problem(400, "images_not_supported", text, param=request.image_field)
        refuse_by_size(request.messages, self.context_tokens)
        return await self._mode.attach(slot, request)

    async def _admit(self, call: ModelCall) -> None:
        """Charges the call to its session's budget and sets its limits. Whatever can be refused with an HTTP
        status is refused here, before the first byte of a reply; a refused request costs nothing."""
        slot, request = call.slot, call.request
        slot.check()
        if request.json_schema is not None and not self._info.constrains:
            raise Problem(400, "not_supported", "this engine does not support schema-constrained decoding")
        call.sampling = _sampling(slot.lease.task.sampling, request)
        prompt = await self._attach(slot, request)
        size = _size(prompt)
        if size >= self.context_tokens:
            raise Overflow(size, self.context_tokens)
        number, session = slot.admit(), slot.lease.session
        call.prompt = None if isinstance(prompt, int) else prompt
        call.stop = call.sampling.stop or request.stop
        call.max_tokens = slot.reply_limit(request.max_tokens, self.context_tokens - size)
        call.seed = _seed(slot, call.sampling, number)
        call_id = f"{session.session_id}.{session.attempt}.{number}"
        call.admitted(Reply(call_id, int(call.arrived), self.model, size))

    async def _sample(self, call: ModelCall) -> None:
        async with self._gate.generating(call.slot.session_id, call.wait) as start:
            call.versions.start, call.versions.start_updates = start.version, start.updates
            try:
                await self._mode.sample(call)
            finally:
                call.versions.updated_within = self._gate.updated_since(start)

    async def _keep(self, call: ModelCall) -> Call:
        """Journals the call, then lets later requests attach to it."""
        slot, record = call.slot, self._record(call)
        try:
            async with slot.lock:
                await self._journal.append_call(record)
                slot.forest.add(record, attachable=call.request.prompt is None)
        except Exception as error:
            raise call_lost(slot, "journal", error) from error
        return record

    def delivered(self, call: ModelCall) -> None:
        """The harness has the whole reply."""
        call.slot.answered(call)
        assert call.reply is not None
        if not call.reply.captured or call.slot.forest.has_received(call.call_id):
            return
        call.slot.forest.mark_received(call.call_id)
        self._journal.mark_received(call.call_id)

    def _record(self, call: ModelCall) -> Call:
        prompt, request = call.prompt, call.request
        assert prompt is not None, "sampling begins with the prompt"
        response = message_of(call.deltas)
        shared = call.slot.forest.shared_items(prompt.parent_id, request.items)
        return Call(
            call_id=call.call_id,
            session_id=call.slot.session_id,
            parent_id=prompt.parent_id,
            continues=prompt.continues,
            new_prompt_ids=prompt.new_prompt_ids,
            completion_ids=call.ids,
            logprobs=call.logprobs,
            prompt_digest=prompt.prompt_digest,
            prompt_tokens=len(prompt.prompt_ids),
            finish_reason=_finish_reason(call, response),
            new_messages=prompt.new_messages,
            response=response,
            tools=None if prompt.parent_id else request.tools,
            new_items=request.items[shared:],
            shared_items=shared,
            dialect=call.dialect,
            kind=call.kind,
            sampling=_recorded_sampling(call),
            engine=f"{self._info.name}/{self._info.model}",
            logprob_mode=self._info.logprob_mode,
            times=CallTimes(call.arrived, call.rendered, time.time()),
            policy_version=call.versions.first,
            policy_spans=call.versions.spans,
            updated_within=call.versions.unknown,
            break_reason=prompt.break_reason,
            tolerant=prompt.tolerant,
            evaluated_tokens=call.evaluated_tokens,
            lone_surrogates=request.lone_surrogates,
            drift=prompt.drift,
            request_key=call.key,
            cut_tokens=call.given - len(call.ids),
            usage=call.usage,
        )


def refuse_by_size(messages: tuple[Message, ...], context_tokens: int) -> None:
    """Raises `Overflow` for a text that fits no context in any vocabulary, before it is rendered."""
    most = context_tokens * LONGEST_TOKEN_CHARACTERS
    contents = [message.content for message in messages if message.role in ("user", "tool")]
    if sum(map(len, contents)) <= most:
        return
    size = sum(len(content.strip()) for content in contents)  # templates strip white space at the ends
    if size > most:
        raise Overflow(size // LONGEST_TOKEN_CHARACTERS, context_tokens)


def retry_key(request: ChatRequest, dialect: str, attribution: tuple[str, ...]) -> bytes:
    """Equal for a request and its retry only: parallel work of one harness differs in its content or
    attribution."""
    parts = [dialect.encode(), *(text.encode() for text in attribution), *request.items]
    return hashlib.blake2b(b"\0".join([*parts, request.rest]), digest_size=16).digest()


def _size(prompt: Prompt | int) -> int:
    return prompt if isinstance(prompt, int) else len(prompt.prompt_ids)


def _sampling(task: Sampling, request: ChatRequest) -> Sampling:
    wanted = {name: request.asked[name] for name in task.follow_harness if request.asked.get(name) is not None}
    if not wanted:
        return task
    try:
        return Sampling.model_validate({**task.model_dump(), **wanted})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise Problem(400, "invalid_request", f"{field}: {first['msg']}", param=field) from error


def _recorded_sampling(call: ModelCall) -> dict[str, Any]:
    used = {name: getattr(call.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    limits = {"seed": call.seed, "max_tokens": call.max_tokens}
    further = {"stop": list(call.stop), "json_schema": call.request.json_schema, "asked": call.request.asked}
    return {**used, **limits, **{name: value for name, value in further.items() if value}}


def _seed(slot: OpenSlot, sampling: Sampling, number: int) -> int:
    """A different seed for each call. It is derived from the task's seed, if there is one, so that a run can be
    repeated."""
    if sampling.seed is None:
        return secrets.randbits(31)
    text = f"{sampling.seed}/{slot.lease.session.index}/{number}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) & 0x7FFFFFFF


def _reply(call: ModelCall, record: Call) -> Reply:
    assert call.reply is not None
    usage = record.usage or EndpointUsage(record.prompt_tokens, len(record.completion_ids))
    size = call.reply.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    evaluated = size if record.evaluated_tokens is None else record.evaluated_tokens
    return msgspec.structs.replace(
        call.reply,
        prompt_tokens=size,
        message=record.response,
        deltas=tuple(call.deltas),
        finish_reason=record.finish_reason,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=max(0, size - evaluated),
        reasoning_tokens=call.reasoning_tokens,
        stop_sequence=call.stop_sequence,
    )


def _finish_reason(call: ModelCall, response: Message) -> FinishReason:
    reason = call.finish_reason or "aborted"
    return "tool_calls" if reason == "stop" and response.tool_calls else reason


def _client_left(call: ModelCall) -> Problem:
    code = "client_gone" if call.wait.has_tokens else "client_gave_up"
    return Problem(499, code, "the client left before its reply was complete")
