"""The format of `/v1/chat/completions`: requests from chat prompts, and deltas from replies.

A streamed tool call comes in fragments, which may interleave with those of other calls. Each call becomes one
delta, in the order of their indexes: as soon as its arguments are complete and a later call has begun, else at
the end.
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
DETOKENIZE = "/detokenize"


class ReplyFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class ReplyToolCall(msgspec.Struct, frozen=True):
    function: ReplyFunction
    index: int | None = None
    id: str | None = None


class ReplyMessage(msgspec.Struct, frozen=True):
    """A message of a reply, or in a stream the new part of it."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""
    tool_calls: list[ReplyToolCall] | None = None


def chat_fields(prompt: ChatPrompt) -> dict[str, Any]:
    """The part of a request that all servers share."""
    fields: dict[str, Any] = {
        **prompt_fields(prompt),
        "n": 1,
        **sampling_fields(prompt.sampling),
        "min_tokens": 0,
        "stop": list(prompt.stop),
        "logprobs": True,
        "top_logprobs": 0,
    }
    if prompt.tools:
        fields["tool_choice"] = "auto"
    if prompt.max_tokens is not None:
        fields["max_completion_tokens"] = prompt.max_tokens
    if prompt.json_schema is not None:
        # A server may treat an empty schema, which allows anything, as none.
        schema = {"name": "reply", "schema": prompt.json_schema or {"type": "object"}}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def prompt_fields(prompt: ChatPrompt) -> dict[str, Any]:
    """The part of a request that the model's template renders."""
    fields: dict[str, Any] = {"messages": [_message(message) for message in prompt.messages]}
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning:  # servers read one name or the other
        fields["reasoning"] = fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = []
    end = 0
    for image in message.images:
        parts.append({"type": "text", "text": message.content[end : image.at]})
        parts.append({"type": "image_url", "image_url": {"url": image.url}})
        end = image.at
    parts.append({"type": "text", "text": message.content[end:]})
    return [part for part in parts if part.get("text") != ""]


def whole_deltas(message: ReplyMessage, *, cut: bool) -> tuple[Delta, ...]:
    """The deltas of a reply that was not streamed. `cut`: the reply ended early, so incomplete calls are
    dropped."""
    calls = [_PartialCall(index).add(call) for index, call in enumerate(message.tool_calls or ())]
    return (*_text_deltas(message), *_call_deltas(calls, cut=cut))


def _text_deltas(message: ReplyMessage) -> list[Delta]:
    reasoning = message.reasoning or message.reasoning_content
    deltas = [Delta(reasoning=reasoning)] if reasoning else []
    return [*deltas, Delta(content=message.content)] if message.content else deltas


def _call_deltas(calls: Iterable[_PartialCall], *, cut: bool) -> list[Delta]:
    return [Delta(tool_call=call.whole()) for call in calls if not cut or call.is_complete()]


class StreamedReply:
    """Turns the messages of a stream into deltas, with each tool call as one delta."""

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        """In the order they began. Delivered ones stay: a server may end a call with an empty fragment."""
        self._next_index = 0
        """All calls before this index were delivered."""

    def add(self, message: ReplyMessage) -> tuple[Delta, ...]:
        deltas = _text_deltas(message)
        for fragment in message.tool_calls or ():
            self._call_of(fragment).add(fragment)
        for call in self._pending()[:-1]:
            if call.index > self._next_index or not call.is_complete():
                break
            deltas.append(Delta(tool_call=call.whole()))
            call.delivered, self._next_index = True, call.index + 1
        return tuple(deltas)

    def end(self, *, cut: bool) -> tuple[Delta, ...]:
        """The pending calls. `cut`: the reply ended early, so incomplete calls are dropped."""
        pending, self._calls = self._pending(), []
        return tuple(_call_deltas(pending, cut=cut))

    def _pending(self) -> list[_PartialCall]:
        return sorted((call for call in self._calls if not call.delivered), key=lambda call: call.index)

    def _call_of(self, fragment: ReplyToolCall) -> _PartialCall:
        candidates = [call for call in reversed(self._calls) if fragment.index in (None, call.index)]
        same_id = [call for call in candidates if fragment.id and fragment.id == call.id]
        if same_id:
            return same_id[0]
        if candidates and not candidates[0].is_followed_by(fragment):
            return candidates[0]
        after_all = 1 + max((call.index for call in self._calls), default=-1)
        self._calls.append(_PartialCall(after_all if fragment.index is None else fragment.index))
        return self._calls[-1]


class _PartialCall:
    def __init__(self, index: int) -> None:
        self.index = index
        """The server's index, or if it sends none, the next free one. Two calls may have the same."""
        self.id = ""
        self.delivered = False
        self._name = ""
        self._arguments: list[str] = []

    def add(self, fragment: ReplyToolCall) -> _PartialCall:
        self.id = fragment.id or self.id
        self._name = fragment.function.name or self._name
        self._arguments.append(fragment.function.arguments or "")
        return self

    def is_followed_by(self, fragment: ReplyToolCall) -> bool:
        """Whether a fragment with a matching index, but not the same id, begins another call."""
        named_again = bool(self._name and fragment.function.name)
        return bool(self.id and fragment.id) or (named_again and (bool(fragment.id) or fragment.index is None))

    def whole(self) -> ToolCall:
        return ToolCall(name=self._name, arguments="".join(self._arguments), call_id=self.id)

    def is_complete(self) -> bool:
        """Whether the arguments are whole JSON. A number never counts as complete: more digits may follow."""
        try:
            arguments: object = orjson.loads("".join(self._arguments))
        except orjson.JSONDecodeError:
            return False
        return type(arguments) not in (int, float)
