"""OpenAI Chat Completions: `POST /v1/chat/completions`. docs/dialects/openai_chat.md lists every field."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat.errors import openai_error
from polar.gateway.dialects.openai_chat.request import read_request
from polar.gateway.dialects.openai_chat.stream import (
    FINISH_REASONS,
    ChatStream,
    call_json,
    freeform_names,
    usage_json,
)
from polar.gateway.dialects.problems import ErrorReply, Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Message


class OpenAIChat:
    name = "openai_chat"
    history_field = "messages"

    def parse(self, raw: RawRequest) -> ChatRequest:
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        choice = {
            "index": 0,
            "message": message_json(request, reply.message),
            "finish_reason": FINISH_REASONS[reply.finish_reason],
            "logprobs": None,
        }
        return orjson.dumps(
            {
                "id": f"chatcmpl-{reply.reply_id}",
                "object": "chat.completion",
                "created": reply.created,
                "model": reply.model,
                "choices": [choice],
                "usage": usage_json(reply),
            }
        )

    def encoder(self, request: ChatRequest, reply: Reply) -> ChatStream:
        return ChatStream(request, reply)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The list of models, or its only entry. Local servers send the context size as `max_model_len`."""
        entry = {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": "polar",
            "max_model_len": context_tokens,
        }
        return orjson.dumps(entry if one else {"object": "list", "data": [entry]})


def message_json(request: ChatRequest, message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    if message.tool_calls:
        freeform = freeform_names(request)
        written["content"] = message.content or None
        written["tool_calls"] = [call_json(call, custom=call.name in freeform) for call in message.tool_calls]
    return written
