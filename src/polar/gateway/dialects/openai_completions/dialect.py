"""OpenAI's legacy Completions: `POST /v1/completions`, for a prompt that the client has rendered, text or ids."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat.errors import openai_error
from polar.gateway.dialects.openai_chat.request import read_sampling, refuse_several_samples, wants_usage
from polar.gateway.dialects.openai_chat.stream import usage_json
from polar.gateway.dialects.openai_completions.stream import (
    CompletionStream,
    choice_json,
    finish_reason,
    head_json,
)
from polar.gateway.dialects.problems import ErrorReply, Problem
from polar.gateway.dialects.raw_request import RawRequest, digest_item, digest_rest
from polar.types import TokenIds, token_ids

DEFAULT_MAX_TOKENS = 16
"""The provider's default."""

REFUSED = {
    "suffix": "a reply continues the end of its prompt",
    "echo": "the prompt is not sent back",
    "logit_bias": "replies are sampled from the plain model",
}


class OpenAICompletions:
    name = "openai_completions"
    history_field = ""

    def parse(self, raw: RawRequest) -> ChatRequest:
        data = raw.data
        read.refuse_fields(data, REFUSED)
        refuse_several_samples(data, "n", "best_of")
        max_tokens = read.positive(data.get("max_tokens"), "max_tokens")
        return ChatRequest(
            messages=(),
            prompt=_prompt(data.get("prompt")),
            stream=read.flag(data.get("stream"), "stream"),
            max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            stop=read.stop_texts(data.get("stop"), "stop"),
            asked=read_sampling(data),
            items=(digest_item(data.get("prompt")),),
            rest=digest_rest(data, ("prompt",)),
            include_usage=wants_usage(data),
        )

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        choice = choice_json(reply.message.content, finish_reason(reply))
        return orjson.dumps({**head_json(reply), "choices": [choice], "usage": usage_json(reply)})

    def encoder(self, request: ChatRequest, reply: Reply) -> CompletionStream:
        return CompletionStream(request, reply)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)


def _prompt(value: Any) -> str | TokenIds:
    """A text or token ids, also as the only entry of a list."""
    entries = [value] if isinstance(value, str) else read.items(value, "prompt")
    listed = any(isinstance(entry, str | list) for entry in entries)
    if listed and len(entries) > 1:
        raise read.bad(f"prompt must be one: {read.ONE_SAMPLE}", "prompt")
    prompt: Any = entries[0] if listed else entries
    if isinstance(prompt, str) and prompt:
        return prompt
    if not prompt or not all(type(token) is int and 0 <= token < 2**31 for token in prompt):
        raise read.bad("prompt must be a non-empty text or list of token ids", "prompt")
    return token_ids(prompt)
