"""A whole Anthropic reply: a message of content blocks. A stream adds up to the same message."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects.base import Reply, joined
from polar.types import Delta, FinishReason, ToolCall

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "aborted": "end_turn",
}


def reply_json(reply: Reply) -> dict[str, Any]:
    blocks = [_block(delta, reply) for delta in joined(reply.deltas) or [Delta()]]
    return {**head_json(reply), "content": blocks, **stop_json(reply), "usage": usage_json(reply)}


def head_json(reply: Reply) -> dict[str, Any]:
    return {"id": f"msg_{reply.reply_id}", "type": "message", "role": "assistant", "model": reply.model}


def stop_json(reply: Reply) -> dict[str, Any]:
    reason = _STOP_REASONS[reply.finish_reason]
    if reason == "tool_use" and not any(delta.tool_call for delta in reply.deltas):
        reason = "end_turn"  # after `tool_use`, harnesses wait for a call
    if reason == "end_turn" and reply.stop_sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": reason, "stop_sequence": None}


def usage_json(reply: Reply) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "output_tokens": reply.completion_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
    if reply.reasoning_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": reply.reasoning_tokens}
    return usage


def input_text(call: ToolCall) -> str:
    """The arguments of a call as the model spelled them; an empty object if they are not a JSON object."""
    try:
        readable = isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        readable = False
    return call.arguments if readable else "{}"


def signature(reply: Reply) -> str:
    """Signature of the thinking. Harnesses send it back unchanged, so it names the call."""
    return f"polar:{reply.reply_id}"


def _block(delta: Delta, reply: Reply) -> dict[str, Any]:
    if (call := delta.tool_call) is not None:
        written = orjson.Fragment(input_text(call))  # not parsed again, however deeply it is nested
        return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": written}
    if delta.reasoning:
        return {"type": "thinking", "thinking": delta.reasoning, "signature": signature(reply)}
    return {"type": "text", "text": delta.content}
