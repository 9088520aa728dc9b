"""Anthropic replies: a message of content blocks, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import orjson

from polar.gateway.dialects.base import BrokenStream, Problem, Reply, ReplyHead
from polar.gateway.dialects.sse import named_event
from polar.types import Delta, ToolCall

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "aborted": "end_turn"}


def message_bytes(reply: Reply) -> bytes:
    """The reply as one object: what its stream puts together."""
    blocks = list(_blocks(reply.deltas, _signature(reply.head))) or [{"type": "text", "text": ""}]
    return orjson.dumps({**_envelope(reply.head), "content": blocks, **_ending(reply), "usage": _usage(reply)})


class MessageStream:
    """One block is open at a time; a delta of another kind closes it."""

    def __init__(self, head: ReplyHead, error_body: Callable[[Problem], dict[str, Any]]) -> None:
        self._head = head
        self._error_body = error_body
        self._index = 0
        self._open = ""
        """The type of the block that is open."""

    def start(self) -> bytes:
        counted = {"input_tokens": self._head.prompt_tokens, "output_tokens": 0}
        cache = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        unknown: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**_envelope(self._head), **unknown, "usage": {**counted, **cache}}
        return named_event({"type": "message_start", "message": message})

    def heartbeat(self) -> bytes:
        return named_event({"type": "ping"})

    def delta(self, delta: Delta) -> bytes:
        if delta.tool_call is not None:
            return self._close() + self._tool_use(delta.tool_call)
        kind = _kind(delta)
        if not kind:
            return b""
        opening = b"" if kind == self._open else self._close() + self._begin(kind)
        return opening + self._part(f"{kind}_delta", kind, delta.reasoning or delta.content)

    def end(self, reply: Reply) -> bytes:
        last = self._close()
        if self._index == 0:
            last = self._begin("text") + self._close()
        last += named_event({"type": "message_delta", "delta": _ending(reply), "usage": _usage(reply)})
        return last + named_event({"type": "message_stop"})

    def broken(self, problem: Problem) -> BrokenStream:
        """Only a final problem is told. On a bare cut every harness asks again with the same request; on an error
        event one ends, and another goes on from the half that it has."""
        return BrokenStream(b"" if problem.retry else named_event(self._error_body(problem)), clean=False)

    def _begin(self, kind: str) -> bytes:
        self._open = kind
        block = {"type": kind, kind: ""}
        return self._event("content_block_start", content_block=_signed(block, ""))

    def _tool_use(self, call: ToolCall) -> bytes:
        block: dict[str, Any] = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        opening = self._event("content_block_start", content_block=block)
        self._open = "tool_use"
        return opening + self._part("input_json_delta", "partial_json", _input_text(call)) + self._close()

    def _close(self) -> bytes:
        if not self._open:
            return b""
        last = b""
        if self._open == "thinking":
            last = self._part("signature_delta", "signature", _signature(self._head))
        last += self._event("content_block_stop")
        self._open = ""
        self._index += 1
        return last

    def _part(self, kind: str, field: str, value: str) -> bytes:
        return self._event("content_block_delta", delta={"type": kind, field: value})

    def _event(self, kind: str, **payload: Any) -> bytes:
        return named_event({"type": kind, "index": self._index, **payload})


def _kind(delta: Delta) -> str:
    """The type of the block it belongs to; none for a delta that says nothing."""
    if delta.tool_call is not None:
        return "tool_use"
    return "thinking" if delta.reasoning else "text" if delta.content else ""


def _blocks(deltas: Iterable[Delta], signature: str) -> Iterable[dict[str, Any]]:
    """In the order it was said: what follows a call is a block of its own."""
    for kind, run in groupby(filter(_kind, deltas), _kind):
        if kind == "tool_use":
            yield from (_tool_use(delta.tool_call) for delta in run if delta.tool_call)
        else:
            said = "".join(delta.reasoning or delta.content for delta in run)
            yield _signed({"type": kind, kind: said}, signature)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call.call_id,
        "name": call.name,
        "input": orjson.Fragment(_input_text(call)),  # as the model spelled it, however deep it is nested
    }


def _input_text(call: ToolCall) -> str:
    """The call's arguments. What is no JSON object a harness can read is an empty one, streamed or not."""
    try:
        readable = isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        readable = False
    return call.arguments if readable else "{}"


def _signature(head: ReplyHead) -> str:
    """Sent back by harnesses word for word: it tells from which call the thinking is."""
    return f"polar:{head.reply_id}"


def _signed(block: dict[str, Any], signature: str) -> dict[str, Any]:
    return {**block, "signature": signature} if block["type"] == "thinking" else block


def _envelope(head: ReplyHead) -> dict[str, Any]:
    return {"id": f"msg_{head.reply_id}", "type": "message", "role": "assistant", "model": head.model}


def _ending(reply: Reply) -> dict[str, Any]:
    reason = _STOP_REASONS[reply.finish_reason]
    if reason == "tool_use" and not any(delta.tool_call for delta in reply.deltas):
        reason = "end_turn"  # harnesses wait for a call that this reason announces
    if reason == "end_turn" and reply.stop_sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(reply: Reply) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "input_tokens": reply.head.prompt_tokens - reply.cached_tokens,
        "output_tokens": reply.completion_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
    if reply.reasoning_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": reply.reasoning_tokens}
    return usage
