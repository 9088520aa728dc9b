"""A streamed Anthropic reply: one content block is open at a time, and a delta of another kind closes it."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.anthropic.errors import error_body
from polar.gateway.dialects.anthropic.reply import head_json, input_text, signature, stop_json, usage_json
from polar.gateway.dialects.base import BrokenStream, Reply
from polar.gateway.dialects.problems import Problem
from polar.sse import named_event
from polar.types import Delta, ToolCall


class MessageStream:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._index = 0
        self._open = ""
        """Type of the open block; empty if none is open."""

    def start(self) -> bytes:
        tokens = {"input_tokens": self._reply.prompt_tokens, "output_tokens": 0}
        cache = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        unknown: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**head_json(self._reply), **unknown, "usage": {**tokens, **cache}}
        return named_event({"type": "message_start", "message": message})

    def heartbeat(self) -> bytes:
        return named_event({"type": "ping"})

    def delta(self, delta: Delta) -> bytes:
        if delta.tool_call is not None:
            return self._close() + self._tool_use(delta.tool_call)
        kind, text = ("thinking", delta.reasoning) if delta.reasoning else ("text", delta.content)
        if not text:
            return b""
        opening = b"" if kind == self._open else self._close() + self._begin(kind)
        return opening + self._part(f"{kind}_delta", kind, text)

    def end(self, reply: Reply) -> bytes:
        last = self._close()
        if self._index == 0:
            last = self._begin("text") + self._close()
        last += named_event({"type": "message_delta", "delta": stop_json(reply), "usage": usage_json(reply)})
        return last + named_event({"type": "message_stop"})

    def broken(self, problem: Problem) -> BrokenStream:
        """Only a final problem sends an error event. After a bare cut every harness repeats the request; after an
        error event some give up, and some continue from the half that they have."""
        return BrokenStream(b"" if problem.retry else named_event(error_body(problem)), clean=False)

    def _begin(self, kind: str) -> bytes:
        self._open = kind
        block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        return self._event("content_block_start", content_block=block)

    def _tool_use(self, call: ToolCall) -> bytes:
        block: dict[str, Any] = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        opening = self._event("content_block_start", content_block=block)
        self._open = "tool_use"
        return opening + self._part("input_json_delta", "partial_json", input_text(call)) + self._close()

    def _close(self) -> bytes:
        if not self._open:
            return b""
        last = b""
        if self._open == "thinking":
            last = self._part("signature_delta", "signature", signature(self._reply))
        last += self._event("content_block_stop")
        self._open = ""
        self._index += 1
        return last

    def _part(self, kind: str, field: str, value: str) -> bytes:
        return self._event("content_block_delta", delta={"type": kind, field: value})

    def _event(self, kind: str, **payload: Any) -> bytes:
        return named_event({"type": kind, "index": self._index, **payload})
