"""What a Chat Completions harness receives: the message in OpenAI's shape, and its stream of chunks."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, ChatRequest, Problem, Reply, ReplyHead
from polar.gateway.dialects.fields import freeform_input
from polar.gateway.dialects.openai_errors import openai_error_body
from polar.gateway.dialects.sse import data_event
from polar.types import Delta, FinishReason, Message, ToolCall

DONE = b"data: [DONE]\n\n"
FINISH: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "aborted": "stop",
}


def wire_message(request: ChatRequest, message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        freeform = freeform_names(request)
        wire["content"] = message.content or None
        wire["tool_calls"] = [wire_call(call, custom=call.name in freeform) for call in message.tool_calls]
    return wire


def freeform_names(request: ChatRequest) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools if tool.freeform)


def wire_call(call: ToolCall, *, custom: bool) -> dict[str, Any]:
    if custom:
        said = {"name": call.name, "input": freeform_input(call.arguments)}
        return {"id": call.call_id, "type": "custom", "custom": said}
    said = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": said}


def wire_usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.head.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.head.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def broken_stream(problem: Problem) -> BrokenStream:
    """The connection is always cut: a clean end without a finish reason is taken for a whole reply, half a tool
    call with it. A problem that may pass goes without a word, because an error event is final for some harnesses
    that do ask again after a cut."""
    last = b"" if problem.retry else data_event(openai_error_body(problem))
    return BrokenStream(last=last, clean=False)


class ChatStream:
    def __init__(self, request: ChatRequest, head: ReplyHead) -> None:
        self._head = {
            "id": f"chatcmpl-{head.reply_id}",
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
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
        said = {"reasoning_content": delta.reasoning, "content": delta.content}
        said = {name: value for name, value in said.items() if value}
        return self._chunk(said) if said else b""

    def end(self, reply: Reply) -> bytes:
        last = self._chunk({}, finish_reason=FINISH[reply.finish_reason])
        if self._include_usage:
            last += data_event({**self._head, "choices": [], "usage": wire_usage(reply)})
        return last + DONE

    def broken(self, problem: Problem) -> BrokenStream:
        return broken_stream(problem)

    def _call(self, call: ToolCall) -> bytes:
        """Id and name once, in front: a new id is a new call to some harnesses."""
        wire = wire_call(call, custom=call.name in self._freeform)
        kind: str = wire["type"]
        long = "input" if kind == "custom" else "arguments"
        opening = {"index": self._calls, **wire, kind: {**wire[kind], long: ""}}
        rest = {"index": self._calls, kind: {long: wire[kind][long]}}
        self._calls += 1
        return self._chunk({"tool_calls": [opening]}) + self._chunk({"tool_calls": [rest]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return data_event({**self._head, "choices": [choice]})
