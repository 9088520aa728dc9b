"""Chat completions as servers speak them: the canonical conversation as a request, and what a reply says.

A streamed tool call comes in fragments, those of several calls in any order. Calls are said whole and in the order
of their indexes: when a later one begins and the arguments are complete, else at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from polar.engines.base import ChatPrompt
from polar.engines.remote.server import sampling_fields
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


def chat_body(conversation: ChatPrompt) -> dict[str, Any]:
    body: dict[str, Any] = {
        **prompt_fields(conversation),
        "n": 1,
        **sampling_fields(conversation.sampling),
        "min_tokens": 0,
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


def prompt_fields(conversation: ChatPrompt) -> dict[str, Any]:
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


def whole_deltas(message: WireMessage, *, cut: bool) -> tuple[Delta, ...]:
    """All that a message says that came as one, but for calls that are `cut` off."""
    calls = [_Fragments(place).add(call) for place, call in enumerate(message.tool_calls or ())]
    return (*_text_deltas(message), *_said(calls, cut=cut))


def _text_deltas(said: WireMessage) -> list[Delta]:
    reasoning = said.reasoning or said.reasoning_content
    deltas = [Delta(reasoning=reasoning)] if reasoning else []
    return [*deltas, Delta(content=said.content)] if said.content else deltas


def _said(calls: Iterable[_Fragments], *, cut: bool) -> list[Delta]:
    """A call whose arguments the end of the room has `cut` off is none."""
    return [Delta(tool_call=call.whole()) for call in calls if not cut or call.is_complete()]


class StreamedReply:
    """What the events of a stream say, tool calls whole."""

    def __init__(self) -> None:
        self._calls: list[_Fragments] = []
        """As they began. Those that were said stay: a server may end one with an empty fragment."""
        self._next_place = 0
        """No call before it is missing."""

    def hear(self, said: WireMessage) -> tuple[Delta, ...]:
        deltas = _text_deltas(said)
        for fragment in said.tool_calls or ():
            self._call_of(fragment).add(fragment)
        for call in self._waiting()[:-1]:
            if call.place > self._next_place or not call.is_complete():
                break
            deltas.append(Delta(tool_call=call.whole()))
            call.is_said, self._next_place = True, call.place + 1
        return tuple(deltas)

    def end(self, *, cut: bool) -> tuple[Delta, ...]:
        """What was held back, but for calls that are `cut` off."""
        waiting, self._calls = self._waiting(), []
        return tuple(_said(waiting, cut=cut))

    def _waiting(self) -> list[_Fragments]:
        return sorted((call for call in self._calls if not call.is_said), key=lambda call: call.place)

    def _call_of(self, fragment: WireToolCall) -> _Fragments:
        index = fragment.index
        for call in reversed(self._calls):
            if index in (None, call.place) and fragment.id and fragment.id == call.id:
                return call
        for call in reversed(self._calls):
            if index in (None, call.place):
                if call.is_left_by(fragment):
                    break
                return call
        after_all = 1 + max((call.place for call in self._calls), default=-1)
        self._calls.append(_Fragments(after_all if index is None else index))
        return self._calls[-1]


class _Fragments:
    """One tool call as far as it is told."""

    def __init__(self, place: int) -> None:
        self.place = place
        """Its index, or one after the last call's where it has none. Two calls may have one."""
        self.id = ""
        self.is_said = False
        self._name = ""
        self._arguments: list[str] = []

    def add(self, fragment: WireToolCall) -> _Fragments:
        self.id = fragment.id or self.id
        self._name = fragment.function.name or self._name
        self._arguments.append(fragment.function.arguments or "")
        return self

    def is_left_by(self, fragment: WireToolCall) -> bool:
        """Whether a fragment that could be of this call, and does not have its id, begins another one."""
        named_again = bool(self._name and fragment.function.name)
        return bool(self.id and fragment.id) or (named_again and (bool(fragment.id) or fragment.index is None))

    def whole(self) -> ToolCall:
        return ToolCall(name=self._name, arguments="".join(self._arguments), call_id=self.id)

    def is_complete(self) -> bool:
        """Whether nothing can follow. A number never is complete: it may have more digits."""
        try:
            arguments: object = orjson.loads("".join(self._arguments))
        except orjson.JSONDecodeError:
            return False
        return type(arguments) not in (int, float)
