"""Text mode: an endpoint without token ids renders, samples and parses; the gateway keeps the conversation.

Such a call has messages and the endpoint's own token counts, no ids and no logprobs: it can be judged and read,
never trained on. The size of a prompt is unknown before the endpoint answers; until then it is a guess, by which
nothing is refused.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from polar.engines.base import ChatPrompt, EngineInfo, TextEngine, TextPiece
from polar.gateway.calls.model_call import ModelCall, engine_failures
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.forest import Attachment, Prompt, branched
from polar.types import NO_TOKEN_IDS, EndpointUsage, Message, token_ids

CHARACTERS_A_TOKEN = 4
"""About what tokenizers need for English and code."""


class TextMode:
    takes_images = True

    def __init__(self, engine: TextEngine, info: EngineInfo) -> None:
        self._engine = engine
        self._context_tokens = info.context_tokens

    async def attach(self, slot: OpenSlot, request: ChatRequest) -> int:
        if request.prompt is not None:
            text = "the endpoint behind this gateway renders prompts: send messages"
            raise Problem(400, "not_supported", text, param="prompt")
        characters = sum(map(_characters, request.messages))
        return min(1 + characters // CHARACTERS_A_TOKEN, self._context_tokens - 1)

    async def sample(self, call: ModelCall) -> None:
        call.usage = EndpointUsage()
        attachment = call.slot.forest.find(call.request.messages, call.request.tools)
        call.begin(_without_ids(attachment))
        with engine_failures(call.slot):
            async with aclosing(self._engine.text(self._prompt(call))) as pieces:
                async for piece in pieces:
                    _take(call, piece)
                    call.say(piece.deltas)
            call.check_end()

    def _prompt(self, call: ModelCall) -> ChatPrompt:
        assert call.reply is not None, "a call is sampled after its admission"
        is_limited = call.max_tokens < self._context_tokens - call.reply.prompt_tokens
        retention = call.slot.lease.task.reasoning
        messages = call.request.messages
        if retention == "strip":
            messages = tuple(msgspec.structs.replace(message, reasoning="") for message in messages)
        return ChatPrompt(
            messages=messages,
            tools=call.request.tools,
            sampling=call.sampling,
            stop=call.stop,
            session_id=call.slot.session_id,
            max_tokens=call.max_tokens if is_limited else None,
            seed=None if call.sampling.seed is None else call.seed,
            json_schema=call.request.json_schema,
        )


def _take(call: ModelCall, piece: TextPiece) -> None:
    if piece.deltas:
        call.wait.tokens_came()
    call.finish_reason = piece.finish_reason
    call.stop_sequence = piece.stop_sequence
    if piece.usage is None:
        return
    call.usage = usage = piece.usage
    call.slot.sampled_tokens += usage.completion_tokens or 0
    call.reasoning_tokens = usage.reasoning_tokens or 0
    if usage.prompt_tokens is not None and usage.cached_tokens is not None:
        call.evaluated_tokens = max(0, usage.prompt_tokens - usage.cached_tokens)


def _without_ids(attachment: Attachment) -> Prompt:
    prompt = branched(attachment, token_ids())
    if attachment.parent is None or attachment.edit_reason:
        return prompt
    return msgspec.structs.replace(prompt, break_reason=NO_TOKEN_IDS)


def _characters(message: Message) -> int:
    arguments = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + arguments
