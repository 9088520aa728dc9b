"""Chat mode: the engine renders the prompt and parses the reply, for models whose template Polar does not render.

The gateway captures the ids the engine used, and finds out afterwards how a prompt continues the call before it
(`tokens/drift.py`). The engine counts each prompt before sampling, so that one that is too long is refused with a
status and a stream can begin at once.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import msgspec

from polar.engines.base import ChatEngine, ChatPiece, ChatPrompt
from polar.errors import EngineDefect, EngineError
from polar.gateway.calls.model_call import ModelCall, check_piece, engine_failures
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.drift import Departure, compared, drifted, explained
from polar.types import Message, Retention, Sampling

LOGGER = logging.getLogger("polar.gateway")


class ChatMode:
    takes_images = False

    def __init__(self, engine: ChatEngine, gate: PolicyGate) -> None:
        self._engine = engine
        self._gate = gate

    async def attach(self, slot: OpenSlot, request: ChatRequest) -> int:
        if request.prompt is not None:
            text = "in chat mode the engine renders prompts: send messages"
            raise Problem(400, "not_supported", text, param="prompt")
        prompt = _chat_prompt(slot, request, slot.lease.task.sampling)
        with engine_failures(slot):
            if not self._engine.counts_by_sampling:
                return await self._engine.count(prompt)
            async with self._gate.generating(slot.session_id):
                return await self._engine.count(prompt)

    async def sample(self, call: ModelCall) -> None:
        prompt = msgspec.structs.replace(
            _chat_prompt(call.slot, call.request, call.sampling),
            stop=call.stop,
            max_tokens=call.max_tokens,
            seed=call.seed,
        )
        with engine_failures(call.slot):
            async with aclosing(self._engine.chat(prompt)) as pieces:
                async for heard in pieces:
                    departure = self._take(call, heard)
                    if departure is not None:
                        await self._explain(call, departure)
                    call.check_limit(heard.piece)
                    call.say(heard.deltas)
                    if call.finish_reason is None and call.slot.exhausted == "max_tokens":
                        call.finish_reason = "length"
                        break
            call.check_end()

    def _take(self, call: ModelCall, heard: ChatPiece) -> Departure | None:
        """Keeps a piece up to the limit of the reply. In one step, so that a call that is broken off loses
        nothing; a departure of its prompt, if there is one, is explained afterwards."""
        departure: Departure | None = None
        if call.prompt is None:
            if not heard.prompt_ids:
                raise EngineDefect("the engine did not return the ids of the prompt it rendered")
            attachment = call.slot.forest.find(call.request.messages, call.request.tools)
            found = compared(call.slot.forest, attachment, heard.prompt_ids)
            departure = found if isinstance(found, Departure) else None
            call.begin(drifted(found) if isinstance(found, Departure) else found)
        count = len(call.within_limit(heard.piece))
        call.slot.sampled_tokens += count
        call.take(heard.piece, count)
        check_piece(heard.piece)
        call.stop_sequence = heard.stop_sequence
        call.reasoning_tokens += len(heard.piece.ids) if _only_reasons(heard) else 0
        return departure

    async def _explain(self, call: ModelCall, departure: Departure) -> None:
        """Adds the text of the drifted tokens, for people. A call does not fail for want of it."""
        try:
            expected = await self._engine.decode(departure.expected_ids)
            call.prompt = explained(departure, expected, await self._engine.decode(departure.found_ids))
        except EngineError as error:
            LOGGER.warning("a prompt drifted, and the engine cannot decode the tokens: %s", error)


def _chat_prompt(slot: OpenSlot, request: ChatRequest, sampling: Sampling) -> ChatPrompt:
    """As it is counted; sampling adds its limits."""
    return ChatPrompt(
        messages=_shown(request.messages, slot.lease.task.reasoning),
        tools=request.tools,
        sampling=sampling,
        stop=(),
        session_id=slot.session_id,
        max_tokens=1,
        seed=None,
        json_schema=request.json_schema,
    )


def _shown(messages: tuple[Message, ...], retention: Retention) -> tuple[Message, ...]:
    """The engine's template keeps or cuts earlier reasoning, unless the task wants it stripped."""
    if retention != "strip":
        return messages
    return tuple(msgspec.structs.replace(message, reasoning="") for message in messages)


def _only_reasons(heard: ChatPiece) -> bool:
    return bool(heard.deltas) and all(delta.reasoning for delta in heard.deltas)
