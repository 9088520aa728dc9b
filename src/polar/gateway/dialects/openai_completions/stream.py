"""A streamed reply of legacy Completions, and the JSON that a whole reply shares with it."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, ChatRequest, Reply
from polar.gateway.dialects.openai_chat.stream import DONE, broken_stream, usage_json
from polar.gateway.dialects.problems import Problem
from polar.sse import data_event
from polar.types import Delta


class CompletionStream:
    def __init__(self, request: ChatRequest, reply: Reply) -> None:
        self._head = head_json(reply)
        self._include_usage = request.include_usage

    def start(self) -> bytes:
        return self._chunk("")

    def heartbeat(self) -> bytes:
        return self._chunk("")

    def delta(self, delta: Delta) -> bytes:
        return self._chunk(delta.content) if delta.content else b""

    def end(self, reply: Reply) -> bytes:
        last = self._chunk("", finish_reason(reply))
        if self._include_usage:
            last += data_event({**self._head, "choices": [], "usage": usage_json(reply)})
        return last + DONE

    def broken(self, problem: Problem) -> BrokenStream:
        return broken_stream(problem)

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        return data_event({**self._head, "choices": [choice_json(text, finish_reason)]})


def head_json(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply.reply_id}",
        "object": "text_completion",
        "created": reply.created,
        "model": reply.model,
    }


def choice_json(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}


def finish_reason(reply: Reply) -> str:
    """This API has no reason for tool calls."""
    return "length" if reply.finish_reason == "length" else "stop"
