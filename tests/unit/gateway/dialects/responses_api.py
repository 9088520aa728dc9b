"""Requests and replies of the Responses dialect, as its tests write and read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson
import pytest

from polar.gateway.dialects.base import ChatRequest, Reply, StreamEncoder
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, FinishReason, Message, Tool

HEAD = Reply(reply_id="s1.0.7", created=1_760_000_000, model="polar", prompt_tokens=30)
USER = {"role": "user", "content": "go"}
BASH = {
    "type": "function",
    "name": "bash",
    "description": "Run a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.+/'},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents that help.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Start one.", "parameters": {"type": "object"}},
        {"type": "function", "name": "wait", "description": "Wait for one.", "parameters": {"type": "object"}},
    ],
}
TOOL_SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}


def parse(**data: Any) -> ChatRequest:
    return OpenAIResponses().parse(RawRequest({"model": "m", "input": [USER], **data}))


def messages(*items: Any) -> tuple[Message, ...]:
    return parse(input=list(items)).messages


def tools(*entries: Any) -> tuple[Tool, ...]:
    return parse(tools=list(entries)).tools


def refused(param: str, **data: Any) -> str:
    """The message of the refusal that the request gets for this field."""
    with pytest.raises(Problem) as caught:
        parse(**data)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_request", param)
    assert not caught.value.retry
    return caught.value.message


def reply_of(deltas: Iterable[Delta], finish_reason: FinishReason = "stop") -> Reply:
    deltas = tuple(deltas)
    message = Message(
        role="assistant",
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(delta.tool_call for delta in deltas if delta.tool_call is not None),
    )
    return msgspec.structs.replace(
        HEAD,
        message=message,
        deltas=deltas,
        finish_reason=finish_reason,
        completion_tokens=12,
        cached_tokens=20,
        reasoning_tokens=5,
    )


def written(request: ChatRequest, *deltas: Delta, finish_reason: FinishReason = "stop") -> dict[str, Any]:
    """The response object of a reply that is not streamed."""
    return orjson.loads(OpenAIResponses().reply(request, reply_of(deltas, finish_reason)))


def encoder(request: ChatRequest) -> StreamEncoder:
    return OpenAIResponses().encoder(request, HEAD)


def events(data: bytes) -> list[dict[str, Any]]:
    """What a strict reader of server-sent events sees: each event is named by its type."""
    found: list[dict[str, Any]] = []
    assert data.endswith(b"\n\n") or not data
    for frame in data.decode().removesuffix("\n\n").split("\n\n") if data else []:
        name, _, payload = frame.partition("\n")
        assert name.startswith("event: ") and payload.startswith("data: ") and "\n" not in payload
        found.append(orjson.loads(payload.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
    return found


def streamed(request: ChatRequest, *deltas: Delta, finish_reason: FinishReason = "stop") -> list[dict[str, Any]]:
    stream = encoder(request)
    data = stream.start() + b"".join(map(stream.delta, deltas))
    return events(data + stream.end(reply_of(deltas, finish_reason)))
