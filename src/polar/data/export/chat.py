"""The conversation of a trace, in the form of OpenAI's chat API.

Messages are kept by call: what each request added to its parent's. A reply stands as the model wrote it where the
next call continues its tokens, and as the harness repeated it where the prompt was rendered anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from polar.types import Call, Image, Message, Tool, ToolCall, Trace


class Turn(NamedTuple):
    """A message of a conversation."""

    message: Message
    call: Call
    """Whose reply it is, or whose request brought it."""
    is_reply: bool


class Conversation(NamedTuple):
    turns: tuple[Turn, ...]
    """Up to the last reply of the trace."""
    tools: tuple[Tool, ...]
    trained: frozenset[str]
    """Calls whose replies this trace trains on. Other replies are context, and trained on in another trace."""

    def is_trained(self, turn: Turn) -> bool:
        return turn.is_reply and turn.call.call_id in self.trained


def conversation_of(trace: Trace, calls: Mapping[str, Call]) -> Conversation:
    """`calls`: those of the session, by id."""
    last = calls.get(trace.spans[-1].call_id) if trace.spans else None
    return _conversation(_chain(last, calls), trained_calls(trace))


def conversations_of(calls: Mapping[str, Call]) -> Iterator[Conversation]:
    """Those of a session without traces, because its engine gives no token ids: one for each call that no other
    continues. A reply is trained on in the first that has it. Auxiliary calls, such as titles, are left out."""
    parents = {call.parent_id for call in calls.values()}
    claimed: set[str] = set()
    for last in calls.values():
        if last.call_id in parents or last.kind == "auxiliary":
            continue
        chain = _chain(last, calls)
        trained = frozenset(call.call_id for call in chain) - claimed
        claimed |= trained
        yield _conversation(chain, trained)


def _conversation(chain: Sequence[Call], trained: frozenset[str]) -> Conversation:
    turns: list[Turn] = []
    for parent, call in zip([None, *chain], chain, strict=False):
        turns += _added(parent, call)
    if chain:
        turns.append(Turn(chain[-1].response, chain[-1], is_reply=True))
    tools = next((call.tools for call in reversed(chain) if call.tools is not None), ())
    return Conversation(tuple(turns), tools, trained)


def trained_calls(trace: Trace) -> frozenset[str]:
    spans = (span for span in trace.spans if any(trace.loss_mask[span.start : span.start + span.length]))
    return frozenset(span.call_id for span in spans)


def openai_messages(conversation: Conversation, *, object_arguments: bool = False) -> list[dict[str, Any]]:
    """Replies have `weight`: 1 if the trace trains on it, 0 if it is context, as in OpenAI's fine-tuning files."""
    return [
        openai_message(turn.message, object_arguments=object_arguments)
        | ({"weight": int(conversation.is_trained(turn))} if turn.message.role == "assistant" else {})
        for turn in conversation.turns
    ]


def openai_message(message: Message, *, object_arguments: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [_tool_call(call, object_arguments) for call in message.tool_calls]
    if message.role == "tool":
        made["tool_call_id"] = message.tool_call_id
    return made


def openai_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def arguments_object(text: str) -> dict[str, Any] | None:
    """The arguments of a tool call; None: the model wrote no JSON object."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _chain(last: Call | None, calls: Mapping[str, Call]) -> list[Call]:
    """From the first request of the conversation to its last."""
    call = last
    chain: list[Call] = []
    while call is not None:
        chain.append(call)
        call = calls.get(call.parent_id or "")
    return chain[::-1]


def _added(parent: Call | None, call: Call) -> list[Turn]:
    """The messages of a request that its parent's does not have: first the parent's reply."""
    new = [Turn(message, call, is_reply=False) for message in call.new_messages]
    if parent is None:
        return new
    echoed = bool(new) and new[0].message.role == "assistant"
    if call.continues or call.usage is not None:  # without token ids nothing was rendered here
        return [Turn(parent.response, parent, is_reply=True), *new[echoed:]]
    return [Turn(new[0].message, parent, is_reply=True), *new[1:]] if echoed else new


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Text, or parts if there are images in it."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = []
    start = 0
    for image in sorted(message.images, key=_position):
        parts += _text_part(message.content[start : image.at])
        parts.append({"type": "image_url", "image_url": {"url": image.url}})
        start = image.at
    return parts + _text_part(message.content[start:])


def _position(image: Image) -> int:
    return image.at


def _text_part(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _tool_call(call: ToolCall, object_arguments: bool) -> dict[str, Any]:
    arguments: Any = call.arguments
    if object_arguments:
        found = arguments_object(call.arguments)
        arguments = call.arguments if found is None else found
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
