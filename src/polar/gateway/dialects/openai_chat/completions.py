"""OpenAI's legacy Completions: `POST /v1/completions`, for a prompt laid out by its sender, as text or as ids."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects.base import (
    BrokenStream,
    ChatRequest,
    ErrorReply,
    Problem,
    RawRequest,
    Reply,
    ReplyHead,
    digest_item,
    digest_rest,
)
from polar.gateway.dialects.fields import bad, items, positive, stop_texts
from polar.gateway.dialects.openai_chat.request import (
    read_asked,
    read_flag,
    refuse_fields,
    refuse_several_samples,
    wants_usage,
)
from polar.gateway.dialects.openai_chat.stream import DONE, broken_stream, wire_usage
from polar.gateway.dialects.openai_errors import openai_error
from polar.gateway.dialects.sse import data_event
from polar.types import Delta, TokenIds, token_ids

DEFAULT_MAX_TOKENS = 16
"""The provider's own."""

REFUSED = {
    "suffix": "a reply goes on from the end of its prompt",
    "echo": "the prompt is not sent back",
    "logit_bias": "replies are sampled from the plain model",
}


class OpenAICompletions:
    name = "openai_completions"
    history_field = ""

    def parse(self, raw: RawRequest) -> ChatRequest:
        data = raw.data
        refuse_fields(data, REFUSED)
        refuse_several_samples(data, "n", "best_of")
        max_tokens = positive(data.get("max_tokens"), "max_tokens")
        return ChatRequest(
            messages=(),
            prompt=_prompt(data.get("prompt")),
            stream=read_flag(data.get("stream"), "stream"),
            max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            stop=stop_texts(data.get("stop"), "stop"),
            asked=read_asked(data),
            items=(digest_item(data.get("prompt")),),
            rest=digest_rest(data, ("prompt",)),
            include_usage=wants_usage(data),
        )

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        choice = _choice(reply.message.content, _finish(reply))
        return orjson.dumps({**_head(reply.head), "choices": [choice], "usage": wire_usage(reply)})

    def encoder(self, request: ChatRequest, head: ReplyHead) -> CompletionStream:
        return CompletionStream(request, head)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)


class CompletionStream:
    def __init__(self, request: ChatRequest, head: ReplyHead) -> None:
        self._head = _head(head)
        self._include_usage = request.include_usage

    def start(self) -> bytes:
        return self._chunk("")

    def heartbeat(self) -> bytes:
        return self._chunk("")

    def delta(self, delta: Delta) -> bytes:
        return self._chunk(delta.content) if delta.content else b""

    def end(self, reply: Reply) -> bytes:
        last = self._chunk("", _finish(reply))
        if self._include_usage:
            last += data_event({**self._head, "choices": [], "usage": wire_usage(reply)})
        return last + DONE

    def broken(self, problem: Problem) -> BrokenStream:
        return broken_stream(problem)

    def _chunk(self, said: str, finish_reason: str | None = None) -> bytes:
        return data_event({**self._head, "choices": [_choice(said, finish_reason)]})


def _head(head: ReplyHead) -> dict[str, Any]:
    return {
        "id": f"cmpl-{head.reply_id}",
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
    }


def _choice(said: str, finish_reason: str | None) -> dict[str, Any]:
    return {"text": said, "index": 0, "logprobs": None, "finish_reason": finish_reason}


def _finish(reply: Reply) -> str:
    """This API knows no tool calls."""
    return "length" if reply.finish_reason == "length" else "stop"


def _prompt(value: Any) -> str | TokenIds:
    """A text or token ids, alone or as the only one of a list."""
    if isinstance(value, str):
        value = [value]
    listed = items(value, "prompt")
    several = any(isinstance(item, str | list) for item in listed)
    if several and len(listed) > 1:
        raise bad("prompt must be one: each sample is a session of its own", "prompt")
    only: Any = listed[0] if several else listed
    if isinstance(only, str) and only:
        return only
    if not only or not all(type(item) is int and 0 <= item < 2**31 for item in only):
        raise bad("prompt must be a text or a list of token ids, and not empty", "prompt")
    return token_ids(only)
