"""Chat mode: the engine lays the prompt out and reads the reply, for models whose rendering we cannot own.

The ids are captured from the engine, and how a prompt hangs together with the call before it is found out
afterwards (`tokens/drift.py`). The engine counts each prompt before it is sampled from, so that one that is too
long is refused in time and a stream begins at once.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from polar.engines.base import Conversation, ConversationPiece, ConversingEngine, EngineInfo
from polar.errors import EngineDefect
from polar.gateway.admission import Admission, Admitted, refuse_images
from polar.gateway.dialects.base import ChatRequest, Problem
from polar.gateway.generation import Generation
from polar.gateway.sampling import Sampled, check_piece, engine_failures
from polar.gateway.slots import OpenSlot
from polar.gateway.speech import NamedCalls
from polar.tokens.drift import Departure, compared, drifted
from polar.tokens.prompting import PreparedPrompt
from polar.types import Message, Retention, TokenIds


class ChatMode:
    def __init__(self, engine: ConversingEngine, info: EngineInfo) -> None:
        self._engine = engine
        self._admission = Admission(info)

    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        sampling = self._admission.check(slot, request)
        return self._admission.admit(slot, request, sampling, await self.count(slot, request))

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        _refuse(request)
        with engine_failures(slot):
            return await self._engine.count(_conversation(slot, request, None))

    async def sample(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> None:
        names = NamedCalls(admitted.call_id)
        with engine_failures(slot):
            pieces = self._engine.converse(_conversation(slot, generation.asked.request, admitted))
            async with aclosing(pieces):
                async for heard in pieces:
                    await self._take(slot, generation.asked.request, sampled, heard)
                    generation.say(names.named(heard.deltas))
            sampled.check_end()

    async def _take(
        self, slot: OpenSlot, request: ChatRequest, sampled: Sampled, heard: ConversationPiece
    ) -> None:
        """Keeps all of a piece: what the engine says of its ids cannot be cut."""
        if sampled.prompt is None:
            if not heard.prompt_ids:
                raise EngineDefect("the engine did not tell the prompt it made of the conversation")
            sampled.begin(await self._attached(slot, request, heard.prompt_ids))
        slot.sampled_tokens += len(heard.piece.ids)
        sampled.take(heard.piece, len(heard.piece.ids))
        check_piece(heard.piece)
        sampled.stop_sequence = heard.stop_sequence
        sampled.reasoning_tokens += len(heard.piece.ids) if _only_thinks(heard) else 0

    async def _attached(self, slot: OpenSlot, request: ChatRequest, prompt_ids: TokenIds) -> PreparedPrompt:
        async with slot.lock:
            found = compared(slot.forest, slot.forest.find(request.messages, request.tools), prompt_ids)
        if not isinstance(found, Departure):
            return found
        expected = await self._engine.decode(found.expected_ids)
        return drifted(found, expected, await self._engine.decode(found.found_ids))


def _conversation(slot: OpenSlot, request: ChatRequest, admitted: Admitted | None) -> Conversation:
    task = slot.lease.task
    return Conversation(
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
    refuse_images(request.messages)
    if request.prompt is not None:
        text = "the engine lays prompts out itself (chat mode): send messages"
        raise Problem(400, "not_supported", text, param="prompt")


def _shown(messages: tuple[Message, ...], retention: Retention) -> tuple[Message, ...]:
    """Earlier thinking is the engine's template's to keep or cut, unless the task wants none of it."""
    if retention != "strip":
        return messages
    return tuple(msgspec.structs.replace(message, reasoning="") for message in messages)


def _only_thinks(heard: ConversationPiece) -> bool:
    return bool(heard.deltas) and all(delta.reasoning for delta in heard.deltas)
