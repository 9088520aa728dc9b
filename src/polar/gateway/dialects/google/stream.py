"""A Google reply on the wire: its parts, its usage and its stream, as events or as one JSON array."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import orjson

from polar.gateway.dialects.base import BrokenStream, Problem, Reply, ReplyHead
from polar.gateway.dialects.fields import arguments_object
from polar.gateway.dialects.google.errors import error_body
from polar.types import Delta, ToolCall

_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "aborted": "OTHER"}
_LINE_BREAKS = (("\u0085", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))

Part = dict[str, Any]


def wire_json(payload: Any) -> bytes:
    """JSON on one line. Some clients end a line also where Unicode does, in the middle of a text."""
    written = orjson.dumps(payload)
    for character, escaped in _LINE_BREAKS:
        written = written.replace(character.encode(), escaped)
    return written


def signature(head: ReplyHead) -> str:
    """Opaque to the harness, which sends it back: our id of the call."""
    return b64encode(head.reply_id.encode()).decode()


def part_of(delta: Delta, head: ReplyHead) -> Part | None:
    if delta.tool_call is not None:
        return {"functionCall": _function_call(delta.tool_call), "thoughtSignature": signature(head)}
    if delta.reasoning:
        return {"text": delta.reasoning, "thought": True, "thoughtSignature": signature(head)}
    return {"text": delta.content} if delta.content else None


def whole_parts(deltas: Iterable[Delta], head: ReplyHead) -> list[Part]:
    """All that was said in its order; what follows on its own kind is one part with it."""
    parts: list[Part] = []
    for delta in deltas:
        part = part_of(delta, head)
        if part is None:
            continue
        if parts and "text" in part and "text" in parts[-1] and _is_thought(part) == _is_thought(parts[-1]):
            parts[-1]["text"] += part["text"]
        else:
            parts.append(part)
    return parts or [{"text": ""}]


def response(head: ReplyHead, parts: list[Part], end: Reply | None = None) -> dict[str, Any]:
    """A `GenerateContentResponse`: the whole reply, or one chunk of it."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    payload: dict[str, Any] = {"candidates": [candidate]}
    if end is not None:
        candidate["finishReason"] = _FINISH[end.finish_reason]
        payload["usageMetadata"] = _usage(end)
    return {**payload, "modelVersion": head.model, "responseId": head.reply_id}


class GoogleStream:
    """One streamed reply as a series of events."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._thinks = False

    def start(self) -> bytes:
        return self._framed(response(self._head, [{"text": ""}]))

    def heartbeat(self) -> bytes:
        """An empty piece of what is being said, so that no client begins something new for it.

        It has a candidate: a client may take a chunk without one for a broken reply.
        """
        part = {"text": "", "thought": True} if self._thinks else {"text": ""}
        return self._framed(response(self._head, [part]))

    def delta(self, delta: Delta) -> bytes:
        part = part_of(delta, self._head)
        if part is None:
            return b""
        self._thinks = _is_thought(part)
        return self._framed(response(self._head, [part]))

    def end(self, reply: Reply) -> bytes:
        return self._framed(response(self._head, [{"text": ""}], reply))

    def broken(self, problem: Problem) -> BrokenStream:
        """The error is no event: Google's clients look for it as a piece by itself, and find it before the
        connection is cut. Other clients do not see it, and would take a body that ends well for a whole reply."""
        return BrokenStream(wire_json(error_body(problem)) + b"\r\n\r\n", clean=False)

    def _framed(self, payload: dict[str, Any]) -> bytes:
        return b"data: " + wire_json(payload) + b"\r\n\r\n"


class GoogleArray(GoogleStream):
    """The same chunks as the items of one JSON array, which stays open until the reply is whole."""

    def __init__(self, head: ReplyHead) -> None:
        super().__init__(head)
        self._before = b"["

    def end(self, reply: Reply) -> bytes:
        return super().end(reply) + b"]"

    def broken(self, problem: Problem) -> BrokenStream:
        return BrokenStream(self._framed(error_body(problem)), clean=False)

    def _framed(self, payload: dict[str, Any]) -> bytes:
        before, self._before = self._before, b",\r\n"
        return before + wire_json(payload) + b"\n"


def _is_thought(part: Part) -> bool:
    return part.get("thought") is True


def _function_call(call: ToolCall) -> dict[str, Any]:
    named = {"name": call.name, "args": arguments_object(call.arguments)}
    return {"id": call.call_id, **named} if call.call_id else named


def _usage(reply: Reply) -> dict[str, int]:
    prompt, sampled = reply.head.prompt_tokens, reply.completion_tokens
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(0, sampled - reply.reasoning_tokens),
        "thoughtsTokenCount": reply.reasoning_tokens,
        "cachedContentTokenCount": reply.cached_tokens,
        "totalTokenCount": prompt + sampled,
    }
