"""One model call from start to end: request, tokens, engine, journal, reply.

A call is in the journal before the last event of its reply leaves, so a harness never acts on a reply we could
lose. What was sampled of a reply that nobody will get is kept too, as aborted.
"""

from __future__ import annotations

import asyncio
import time

from polar.engines.base import EngineInfo
from polar.gateway.calls.admission import Admitted
from polar.gateway.calls.final_message import final_reply
from polar.gateway.calls.generation import Asked, Generation
from polar.gateway.calls.mode import Mode
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.sampling import Sampled, call_lost
from polar.gateway.calls.waits import CallWait
from polar.gateway.dialects.base import ChatRequest, Problem, Reply, ReplyHead
from polar.gateway.slots import OpenSlot, sealed_problem
from polar.store.journal import Journal
from polar.tokens.replies.reply_text import message_of
from polar.types import Call, CallTimes, FinishReason, Message


class Exchange:
    """Answers the calls of every slot of one gateway."""

    def __init__(self, mode: Mode, gate: PolicyGate, info: EngineInfo, journal: Journal, model: str) -> None:
        self._mode = mode
        self._gate = gate
        self._info = info
        self._journal = journal
        self.model = model
        self.context_tokens = info.context_tokens

    def ask(self, slot: OpenSlot, asked: Asked, linger_s: float = 0.0) -> Generation:
        """The generation that answers a request: a new one, or one that the request is a retry of. With nobody
        listening it goes on for `linger_s`."""
        key = asked.twin_key
        twin = slot.unreceived.get(key)
        if twin is not None and twin.joinable:
            return twin
        generation = Generation(asked, key, linger_s)
        slot.unreceived[key] = generation
        generation.start(self._run(slot, generation))
        return generation

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        """How many tokens a request is, as it would be sent. Samples and records nothing."""
        return await self._mode.count(slot, request)

    def delivered(self, slot: OpenSlot, generation: Generation) -> None:
        """The harness has the whole reply."""
        slot.answered(generation)
        if generation.reply is None or not generation.reply.captured:
            return
        if slot.forest.has_received(generation.reply.head.reply_id):
            return
        call_id = generation.reply.head.reply_id
        slot.forest.mark_received(call_id)
        self._journal.mark_received(call_id)

    async def _run(self, slot: OpenSlot, generation: Generation) -> None:
        with slot.serving(generation), slot.waits.call() as wait:
            try:
                generation.finish(await self._answer(slot, generation, wait))
            except Problem as problem:
                generation.fail(problem)
            except asyncio.CancelledError:
                generation.fail(sealed_problem() if slot.sealed else _nobody_listens(wait))
            except (Exception, SystemExit) as error:  # also a plug-in's: none is to end the node
                generation.fail(call_lost(slot, "gateway", error))
            if generation.problem is not None:
                slot.failed(generation, generation.problem)
                slot.forget(generation)

    async def _answer(self, slot: OpenSlot, generation: Generation, wait: CallWait) -> Reply:
        try:
            admitted = await self._mode.admit(slot, generation.asked.request)
        except Problem as refusal:
            final = final_reply(slot, generation, refusal, self.model)
            if final is None:
                raise
            return final
        head = ReplyHead(admitted.call_id, int(generation.arrived), self.model, admitted.prompt_tokens)
        generation.admitted(head)
        sampled = Sampled(wait)
        try:
            await self._sample(slot, generation, admitted, sampled, wait)
            generation.sampled()
        except (Problem, asyncio.CancelledError):
            generation.sampled()
            if not sampled.ids:
                slot.calls_unsampled += 1
                raise
            sampled.finish_reason = "aborted"
            await self._keep(slot, generation, admitted, sampled)
            raise
        call = await self._keep(slot, generation, admitted, sampled)
        generation.defect = sampled.defect()
        size = call.prompt_tokens
        evaluated = size if call.evaluated_tokens is None else call.evaluated_tokens
        return Reply(
            head=head,
            message=call.response,
            deltas=tuple(generation.deltas),
            finish_reason=call.finish_reason,
            completion_tokens=len(call.completion_ids),
            cached_tokens=max(0, size - evaluated),
            reasoning_tokens=sampled.reasoning_tokens,
            stop_sequence=sampled.stop_sequence,
        )

    async def _sample(
        self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled, wait: CallWait
    ) -> None:
        async with self._gate.generating(slot.session_id, wait) as began:
            sampled.versions.began = began.version
            try:
                await self._mode.sample(slot, generation, admitted, sampled)
            finally:
                sampled.versions.updated_within = self._gate.updated_since(began)

    async def _keep(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> Call:
        """Journals the call and makes it known to later ones."""
        call = self._call(slot, generation, admitted, sampled)
        try:
            async with slot.lock:
                await self._journal.append_call(call)
                slot.forest.add(call, attachable=generation.asked.request.prompt is None)
        except Exception as error:
            raise call_lost(slot, "journal", error) from error
        return call

    def _call(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> Call:
        prompt, asked = sampled.prompt, generation.asked
        assert prompt is not None, "nothing is sampled before the prompt is known"
        response = message_of(generation.deltas)
        shared = slot.forest.shared_items(prompt.parent_id, asked.request.items)
        return Call(
            call_id=admitted.call_id,
            session_id=slot.session_id,
            parent_id=prompt.parent_id,
            continues=prompt.continues,
            new_prompt_ids=prompt.new_prompt_ids,
            completion_ids=sampled.ids,
            logprobs=sampled.logprobs,
            prompt_digest=prompt.prompt_digest,
            prompt_tokens=len(prompt.prompt_ids),
            finish_reason=_finish(sampled, response),
            new_messages=prompt.new_messages,
            response=response,
            tools=None if prompt.parent_id else asked.request.tools,
            new_items=asked.request.items[shared:],
            shared_items=shared,
            dialect=asked.dialect,
            kind=asked.kind,
            sampling=admitted.recorded(asked.request),
            engine=f"{self._info.name}/{self._info.model}",
            logprob_mode=self._info.logprob_mode,
            times=CallTimes(generation.arrived, sampled.rendered, time.time()),
            policy_version=sampled.versions.first,
            policy_spans=sampled.versions.spans,
            updated_within=sampled.versions.unknown,
            break_reason=prompt.break_reason,
            tolerant=prompt.tolerant,
            evaluated_tokens=sampled.evaluated_tokens,
            lone_surrogates=asked.request.lone_surrogates,
            drift=prompt.drift,
            request_key=generation.key,
            cut_tokens=sampled.given - len(sampled.ids),
        )


def _finish(sampled: Sampled, response: Message) -> FinishReason:
    reason = sampled.finish_reason or "aborted"
    return "tool_calls" if reason == "stop" and response.tool_calls else reason


def _nobody_listens(wait: CallWait) -> Problem:
    code = "client_gone" if wait.has_tokens else "client_gave_up"
    return Problem(499, code, "nobody waits for this reply any more")
