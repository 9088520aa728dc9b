"""Chat completions as servers speak them: the canonical conversation as a request, and what a reply says.

A streamed tool call comes in fragments, and is said when it is whole: when the next one begins, or at the end.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from polar.engines.base import Conversation
from polar.types import Delta, Message, Tool, ToolCall

CHAT = "/v1/chat/completions"


class WireFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class WireToolCall(msgspec.Struct, frozen=True):
    function: WireFunction
    index: int | None = None
    id: str | None = None


class WireMessage(msgspec.Struct, frozen=True):
    """A message, or what is new of one."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same under its older name."""
    tool_calls: list[WireToolCall] | None = None


def chat_body(conversation: Conversation) -> dict[str, Any]:
    """Every sampling value is sent: servers take those left out from the model's generation config."""
    sampling = conversation.sampling
    body: dict[str, Any] = {
        **prompt_fields(conversation),
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "ignore_eos": False,
        "stop": list(conversation.stop),
        "logprobs": True,
        "top_logprobs": 0,
    }
    if conversation.tools:
        body["tool_choice"] = "auto"
    if conversation.max_tokens is not None:
        body["max_completion_tokens"] = conversation.max_tokens
    if conversation.json_schema is not None:
        # An empty schema allows anything, and a server may take it for none.
        held = {"name": "reply", "schema": conversation.json_schema or {"type": "object"}}
        body["response_format"] = {"type": "json_schema", "json_schema": held}
    return body


def prompt_fields(conversation: Conversation) -> dict[str, Any]:
    """What the prompt is made of."""
    fields: dict[str, Any] = {"messages": [_wire_message(message) for message in conversation.messages]}
    if conversation.tools:
        fields["tools"] = [_wire_tool(tool) for tool in conversation.tools]
    return fields


def _wire_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _wire_message(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": _wire_content(message)}
    if message.reasoning:  # a server reads the one name or the other
        wire["reasoning"] = wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _wire_content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = []
    said = 0
    for image in message.images:
        parts.append({"type": "text", "text": message.content[said : image.at]})
        parts.append({"type": "image_url", "image_url": {"url": image.url}})
        said = image.at
    parts.append({"type": "text", "text": message.content[said:]})
    return [part for part in parts if part.get("text") != ""]


def whole_deltas(message: WireMessage) -> tuple[Delta, ...]:
    """All that a message says that came as one."""
    calls = [_Fragments().add(call) for call in message.tool_calls or ()]
    return (*_text_deltas(message), *(Delta(tool_call=call.whole()) for call in calls))


def _text_deltas(said: WireMessage) -> list[Delta]:
    reasoning = said.reasoning or said.reasoning_content
    deltas = [Delta(reasoning=reasoning)] if reasoning else []
    return [*deltas, Delta(content=said.content)] if said.content else deltas


class StreamedReply:
    """What the events of a stream say, tool calls whole."""

    def __init__(self) -> None:
        self._call: _Fragments | None = None

    def hear(self, said: WireMessage) -> tuple[Delta, ...]:
        deltas = _text_deltas(said)
        for fragment in said.tool_calls or ():
            if self._call is not None and self._call.index != fragment.index:
                deltas.append(Delta(tool_call=self._call.whole()))
                self._call = None
            self._call = (self._call or _Fragments()).add(fragment)
        return tuple(deltas)

    def end(self, *, cut: bool) -> tuple[Delta, ...]:
        """What was held back. A call whose arguments the end of the room has `cut` off is none."""
        call, self._call = self._call, None
        return () if call is None or (cut and not call.is_complete()) else (Delta(tool_call=call.whole()),)


class _Fragments:
    """One tool call as far as it is told."""

    def __init__(self) -> None:
        self.index: int | None = None
        self._id = self._name = ""
        self._arguments: list[str] = []

    def add(self, fragment: WireToolCall) -> _Fragments:
        self.index = fragment.index
        self._id = fragment.id or self._id
        self._name = fragment.function.name or self._name
        self._arguments.append(fragment.function.arguments or "")
        return self

    def whole(self) -> ToolCall:
        return ToolCall(name=self._name, arguments="".join(self._arguments), call_id=self._id)

    def is_complete(self) -> bool:
        try:
            orjson.loads("".join(self._arguments))
        except orjson.JSONDecodeError:
            return False
        return True
