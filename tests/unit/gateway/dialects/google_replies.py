"""Replies in Google's dialect, as a client puts them together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.google import Google
from polar.types import Delta, FinishReason, Message

HEAD = Reply(reply_id="c0ffee", created=1, model="polar", prompt_tokens=100)
EVENTS = ChatRequest(messages=(Message(role="user"),), stream=True)
ARRAY = ChatRequest(messages=(Message(role="user"),), stream=True, array=True)


def reply_of(deltas: Sequence[Delta], finish: FinishReason = "stop", **counts: int) -> Reply:
    calls = tuple(delta.tool_call for delta in deltas if delta.tool_call)
    message = Message(
        role="assistant",
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=calls,
    )
    tokens = {"completion_tokens": 20, "cached_tokens": 0, **counts}
    return msgspec.structs.replace(HEAD, message=message, deltas=tuple(deltas), finish_reason=finish, **tokens)


def whole(reply: Reply) -> dict[str, Any]:
    return orjson.loads(Google().reply(EVENTS, reply))


def stream(request: ChatRequest, reply: Reply, heartbeats: bool = False) -> bytes:
    encoder = Google().encoder(request, HEAD)
    sent = encoder.start()
    for delta in reply.deltas:
        sent += (encoder.heartbeat() if heartbeats else b"") + encoder.delta(delta)
    return sent + (encoder.heartbeat() if heartbeats else b"") + encoder.end(reply)


def events(sent: bytes) -> list[dict[str, Any]]:
    """Strict: nothing but `data:` events with the frame that every client reads."""
    assert sent.endswith(b"\r\n\r\n")
    found = sent.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n")
    assert all(re.fullmatch(rb"data: \{[^\r\n]*\}", event) for event in found)
    return [orjson.loads(event.removeprefix(b"data: ")) for event in found]


def parts_of(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    return chunk["candidates"][0]["content"]["parts"]


def assembled(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The last chunk with the parts of all of them: pieces of one kind joined, empty ones forgotten."""
    parts: list[dict[str, Any]] = []
    for part in (part for chunk in chunks for part in parts_of(chunk)):
        if part.get("text") == "":
            continue
        if parts and "text" in part and "text" in parts[-1] and part.get("thought") == parts[-1].get("thought"):
            parts[-1]["text"] += part["text"]
        else:
            parts.append(dict(part))
    last = chunks[-1]
    (candidate,) = last["candidates"]
    content = {"role": "model", "parts": parts or [{"text": ""}]}
    return {**last, "candidates": [{**candidate, "content": content}]}
