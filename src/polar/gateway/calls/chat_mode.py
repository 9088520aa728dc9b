"""Chat mode: the engine lays the prompt out and reads the reply, for models whose rendering we cannot own.

The ids are captured from the engine, and how a prompt hangs together with the call before it is found out
afterwards (`tokens/drift.py`). The engine counts each prompt before it is sampled from, so that one that is too
long is refused in time and a stream begins at once.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import msgspec

from polar.engines.base import ChatEngine, ChatPiece, ChatPrompt, EngineInfo
from polar.errors import EngineDefect, EngineError
from polar.gateway.calls.admission import Admission, Admitted, refuse_images
from polar.gateway.calls.generation import Generation
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.sampling import Sampled, check_piece, engine_failures
from polar.gateway.dialects.base import ChatRequest, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.drift import Departure, compared, drifted, explained
from polar.tokens.replies.reply_decoder import ToolCallIds
from polar.types import Message, Retention

LOGGER = logging.getLogger("polar.gateway")


class ChatMode:
    def __init__(self, engine: ChatEngine, info: EngineInfo, gate: PolicyGate) -> None:
        self._engine = engine
        self._admission = Admission(info)
        self._gate = gate

    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        sampling = self._admission.check(slot, request)
        return self._admission.admit(slot, request, sampling, await self.count(slot, request))

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        _refuse(request)
        self._admission.refuse_by_size(request.messages)
        asked = _conversation(slot, request, None)
        with engine_failures(slot):
            if not self._engine.counts_by_sampling:
                return await self._engine.count(asked)
            async with self._gate.generating(slot.session_id):
                return await self._engine.count(asked)

    async def sample(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> None:
        request, names = generation.asked.request, ToolCallIds(admitted.call_id)
        with engine_failures(slot):
            async with aclosing(self._engine.converse(_conversation(slot, request, admitted))) as pieces:
                async for heard in pieces:
                    departure = self._take(slot, request, admitted, sampled, heard)
                    if departure is not None:
                        await self._explain(departure, sampled)
                    sampled.check_limit(heard.piece)
                    generation.say(names.assign(heard.deltas))
                    if sampled.finish_reason is None and slot.exhausted == "max_tokens":
                        sampled.finish_reason = "length"
                        break
            sampled.check_end()

    def _take(
        self,
        slot: OpenSlot,
        request: ChatRequest,
        admitted: Admitted,
        sampled: Sampled,
        heard: ChatPiece,
    ) -> Departure | None:
        """Keeps a piece, up to the limit of the reply: else what the engine says of its ids cannot be cut. In one
        step, so that nothing of it is lost when the call is broken off; the departure of its prompt, if it has
        one, is explained later."""
        departure: Departure | None = None
        if sampled.prompt is None:
            if not heard.prompt_ids:
                raise EngineDefect("the engine did not tell the prompt it made of the conversation")
            place = slot.forest.find(request.messages, request.tools)
            found = compared(slot.forest, place, heard.prompt_ids)
            departure = found if isinstance(found, Departure) else None
            sampled.begin(drifted(found) if isinstance(found, Departure) else found, admitted.max_tokens)
        count = len(sampled.within_limit(heard.piece))
        slot.sampled_tokens += count
        sampled.take(heard.piece, count)
        check_piece(heard.piece)
        sampled.stop_sequence = heard.stop_sequence
        sampled.reasoning_tokens += len(heard.piece.ids) if _only_thinks(heard) else 0
        return departure

    async def _explain(self, departure: Departure, sampled: Sampled) -> None:
        """What the tokens say is for people to read: a call is not lost for want of it."""
        try:
            expected = await self._engine.decode(departure.expected_ids)
            sampled.prompt = explained(departure, expected, await self._engine.decode(departure.found_ids))
        except EngineError as error:
            LOGGER.warning("a prompt drifted, and the engine does not tell what it says: %s", error)


def _conversation(slot: OpenSlot, request: ChatRequest, admitted: Admitted | None) -> ChatPrompt:
    task = slot.lease.task
    return ChatPrompt(
        messages=_shown(request.messages, task.reasoning),
        tools=request.tools,
        sampling=admitted.sampling if admitted else task.sampling,
        stop=admitted.stop if admitted else (),
        session_id=slot.session_id,
        max_tokens=admitted.max_tokens if admitted else 1,
        seed=admitted.seed if admitted else None,
        json_schema=request.json_schema,
    )


def _refuse(request: ChatRequest) -> None:
    refuse_images(request)
    if request.prompt is not None:
        text = "the engine lays prompts out itself (chat mode): send messages"
        raise Problem(400, "not_supported", text, param="prompt")


def _shown(messages: tuple[Message, ...], retention: Retention) -> tuple[Message, ...]:
    """Earlier thinking is the engine's template's to keep or cut, unless the task wants none of it."""
    if retention != "strip":
        return messages
    return tuple(msgspec.structs.replace(message, reasoning="") for message in messages)


def _only_thinks(heard: ChatPiece) -> bool:
    return bool(heard.deltas) and all(delta.reasoning for delta in heard.deltas)
