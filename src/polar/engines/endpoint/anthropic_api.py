"""Anthropic's messages API: requests from chat prompts, and a stream's events as pieces.

Earlier thinking is not sent back: it needs the maker's signature, which no harness of another dialect carries.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
import orjson

from polar.engines.base import ChatPrompt, TextPiece
from polar.engines.endpoint.connection import EndpointConnection
from polar.engines.endpoint.openai_api import changed_sampling
from polar.types import Delta, EndpointUsage, Image, Message, Tool, ToolCall

VERSION = "2023-06-01"
OUTPUT_TOKENS = 8192
"""The API demands a limit; this one is sent if neither task, harness nor options have one."""
LENGTH_REASONS = ("max_tokens", "model_context_window_exceeded")
STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}


class AnthropicUsage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class AnthropicStart(msgspec.Struct, frozen=True):
    usage: AnthropicUsage = AnthropicUsage()


class AnthropicBlock(msgspec.Struct, frozen=True):
    """A content block at its start, or what an event adds to it."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class AnthropicError(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class AnthropicEvent(msgspec.Struct, frozen=True):
    type: str
    message: AnthropicStart = AnthropicStart()
    content_block: AnthropicBlock = AnthropicBlock()
    delta: AnthropicBlock = AnthropicBlock()
    usage: AnthropicUsage | None = None
    error: AnthropicError | None = None


class AnthropicApi:
    path = "/v1/messages"
    constrains = False

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, model: str, prompt: ChatPrompt) -> dict[str, Any]:
        leading = [message.content for message in prompt.messages if message.role == "system"]
        sampling = changed_sampling(prompt.sampling)
        sampling.pop("min_p", None)  # unknown here
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": prompt.max_tokens or OUTPUT_TOKENS,
            "messages": _turns(prompt.messages),
            "stream": True,
            **sampling,
        }
        if leading:
            fields["system"] = "\n\n".join(leading)
        if prompt.tools:
            fields["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.stop:
            fields["stop_sequences"] = list(prompt.stop)
        return fields

    def reader(self, connection: EndpointConnection) -> AnthropicReader:
        return AnthropicReader(connection)


def _tool(tool: Tool) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _turns(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Users and assistants take turns: neighbours of one side become one message. Tool results are the user's."""
    sides = groupby(
        (message for message in messages if message.role != "system"),
        key=lambda message: "assistant" if message.role == "assistant" else "user",
    )
    turns = ((side, [block for message in group for block in _blocks(message)]) for side, group in sides)
    return [{"role": side, "content": blocks} for side, blocks in turns if blocks]


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = _content(message)
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
        return [result | ({"is_error": True} if message.is_error else {})]
    calls = [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _arguments(call)}
        for call in message.tool_calls
    ]
    return [*content, *calls]


def _content(message: Message) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    end = 0
    for image in message.images:
        parts += _text(message.content[end : image.at])
        parts.append({"type": "image", "source": _source(image)})
        end = image.at
    return [*parts, *_text(message.content[end:])]


def _text(text: str) -> list[dict[str, Any]]:
    """The API refuses text without a visible character."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _source(image: Image) -> dict[str, str]:
    head, _, data = image.url.partition(",")
    if not head.startswith("data:"):
        return {"type": "url", "url": image.url}
    media_type = head.removeprefix("data:").removesuffix(";base64")
    return {"type": "base64", "media_type": media_type, "data": data}


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The API demands an object; what the model wrote otherwise is kept as text."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"input": call.arguments}


class AnthropicReader:
    """Reads one reply."""

    def __init__(self, connection: EndpointConnection) -> None:
        self._connection = connection
        self._usage: AnthropicUsage | None = None
        self._output_tokens: int | None = None
        self._block = AnthropicBlock()
        self._arguments: list[str] = []
        self._unfinished: list[Delta] = []
        """Tool calls whose arguments are no whole JSON: dropped if a limit cut the reply, else the model's own."""
        self._stop_reason: str | None = None
        self._stop_sequence = ""

    def feed(self, data: bytes) -> TextPiece | None:
        """The new part of the reply, if the event has one."""
        try:
            event = msgspec.json.decode(data, type=AnthropicEvent)
        except msgspec.MsgspecError as error:
            raise self._connection.refusal(501, f"it sends events in an unknown format: {error}") from error
        if event.error is not None:
            status = STATUS_OF.get(event.error.type, 500)
            raise self._connection.refusal(status, f"{event.error.message} ({event.error.type})")
        delta = self._delta(event)
        return TextPiece((delta,)) if delta is not None else None

    def _delta(self, event: AnthropicEvent) -> Delta | None:
        match event.type:
            case "message_start":
                self._usage = event.message.usage
            case "content_block_start":
                self._block, self._arguments = event.content_block, []
                return _spoken(event.content_block)
            case "content_block_delta":
                self._arguments.append(event.delta.partial_json)
                return _spoken(event.delta)
            case "content_block_stop":
                return self._call()
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._stop_sequence = event.delta.stop_sequence or ""
                self._output_tokens = event.usage.output_tokens if event.usage else None
            case _:  # `ping`, `message_stop`, and what the maker adds
                pass
        return None

    def _call(self) -> Delta | None:
        """The tool call whose block has ended."""
        block, self._block = self._block, AnthropicBlock()
        if block.type != "tool_use":
            return None
        delta = Delta(tool_call=ToolCall(block.name, "".join(self._arguments) or "{}", block.id))
        if _is_json("".join(self._arguments) or "{}"):
            return delta
        self._unfinished.append(delta)
        return None

    def end(self) -> TextPiece:
        """The last piece. Raises `EndpointRefused` if the reply has no end."""
        if self._stop_reason is None:
            raise self._connection.refusal(502, "it ended a reply without a stop reason")
        usage = self._counted()
        if self._stop_reason in LENGTH_REASONS:
            return TextPiece((), "length", usage)
        return TextPiece(tuple(self._unfinished), "stop", usage, self._stop_sequence)

    def _counted(self) -> EndpointUsage:
        usage = self._usage or AnthropicUsage()
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        known = usage.input_tokens is not None
        return EndpointUsage(
            prompt_tokens=usage.input_tokens + cached + written if usage.input_tokens is not None else None,
            completion_tokens=self._output_tokens,
            cached_tokens=cached if known else None,
        )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _spoken(block: AnthropicBlock) -> Delta | None:
    if block.thinking:
        return Delta(reasoning=block.thinking)
    return Delta(content=block.text) if block.text else None
