"""A streamed Chat Completions reply, and the JSON that a whole reply shares with it."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, ChatRequest, Reply
from polar.gateway.dialects.openai_chat.errors import openai_error_body
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import freeform_input
from polar.sse import data_event
from polar.types import Delta, FinishReason, ToolCall

DONE = b"data: [DONE]\n\n"
FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "aborted": "stop",
}


class ChatStream:
    def __init__(self, request: ChatRequest, reply: Reply) -> None:
        self._head = {
            "id": f"chatcmpl-{reply.reply_id}",
            "object": "chat.completion.chunk",
            "created": reply.created,
            "model": reply.model,
        }
        self._include_usage = request.include_usage
        self._freeform = freeform_names(request)
        self._calls = 0

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def heartbeat(self) -> bytes:
        return self._chunk({})

    def delta(self, delta: Delta) -> bytes:
        if delta.tool_call is not None:
            return self._call(delta.tool_call)
        texts = {"reasoning_content": delta.reasoning, "content": delta.content}
        texts = {name: text for name, text in texts.items() if text}
        return self._chunk(texts) if texts else b""

    def end(self, reply: Reply) -> bytes:
        last = self._chunk({}, finish_reason=FINISH_REASONS[reply.finish_reason])
        if self._include_usage:
            last += data_event({**self._head, "choices": [], "usage": usage_json(reply)})
        return last + DONE

    def broken(self, problem: Problem) -> BrokenStream:
        return broken_stream(problem)

    def _call(self, call: ToolCall) -> bytes:
        """Id and name are sent once, in the first chunk: some harnesses take each id for a new call."""
        whole = call_json(call, custom=call.name in self._freeform)
        kind: str = whole["type"]
        field = "input" if kind == "custom" else "arguments"
        first = {"index": self._calls, **whole, kind: {**whole[kind], field: ""}}
        rest = {"index": self._calls, kind: {field: whole[kind][field]}}
        self._calls += 1
        return self._chunk({"tool_calls": [first]}) + self._chunk({"tool_calls": [rest]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return data_event({**self._head, "choices": [choice]})


def freeform_names(request: ChatRequest) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools if tool.freeform)


def call_json(call: ToolCall, *, custom: bool) -> dict[str, Any]:
    if custom:
        written = {"name": call.name, "input": freeform_input(call.arguments)}
        return {"id": call.call_id, "type": "custom", "custom": written}
    written = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": written}


def usage_json(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def broken_stream(problem: Problem) -> BrokenStream:
    """Always cuts the connection: harnesses take a clean end without a finish reason for a complete reply, even
    inside a tool call. A retryable problem sends no event: some harnesses give up at an error, but retry a cut."""
    return BrokenStream(b"" if problem.retry else data_event(openai_error_body(problem)), clean=False)
