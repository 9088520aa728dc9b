"""A whole Google reply, and the parts and usage that a stream shares with it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson

from polar.gateway.dialects.base import Reply, joined
from polar.gateway.dialects.raw_request import arguments_object
from polar.types import Delta, FinishReason

_FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "aborted": "OTHER",
}
_LINE_BREAKS = (("\u0085", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))


def reply_json(reply: Reply) -> dict[str, Any]:
    parts = [part_json(delta, reply) for delta in joined(reply.deltas) or [Delta()]]
    return response_json(reply, parts, complete=True)


def json_line(payload: Any) -> bytes:
    """JSON on one line. Unicode line breaks are escaped, because some clients split lines at them."""
    written = orjson.dumps(payload)
    for character, escaped in _LINE_BREAKS:
        written = written.replace(character.encode(), escaped)
    return written


def part_json(delta: Delta, reply: Reply) -> dict[str, Any]:
    signature = b64encode(reply.reply_id.encode()).decode()  # opaque to the harness, which sends it back
    if (call := delta.tool_call) is not None:
        function: dict[str, Any] = {"name": call.name, "args": arguments_object(call.arguments)}
        if call.call_id:
            function = {"id": call.call_id, **function}
        return {"functionCall": function, "thoughtSignature": signature}
    if delta.reasoning:
        return {"text": delta.reasoning, "thought": True, "thoughtSignature": signature}
    return {"text": delta.content}


def response_json(reply: Reply, parts: list[dict[str, Any]], *, complete: bool = False) -> dict[str, Any]:
    """A `GenerateContentResponse`: the whole reply, or one chunk of it."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    payload: dict[str, Any] = {"candidates": [candidate]}
    if complete:
        candidate["finishReason"] = _FINISH_REASONS[reply.finish_reason]
        payload["usageMetadata"] = usage_json(reply)
    return {**payload, "modelVersion": reply.model, "responseId": reply.reply_id}


def usage_json(reply: Reply) -> dict[str, int]:
    prompt, sampled = reply.prompt_tokens, reply.completion_tokens
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(0, sampled - reply.reasoning_tokens),
        "thoughtsTokenCount": reply.reasoning_tokens,
        "cachedContentTokenCount": reply.cached_tokens,
        "totalTokenCount": prompt + sampled,
    }
