"""The input of a Responses request: a list of items to the conversation they are.

The provider writes one turn of the model as several items. Here they are one message again, or each such turn
would stand in the model's context as two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, cast

import orjson

from polar.gateway.dialects import fields as reading
from polar.gateway.dialects.base import HistoryItem
from polar.gateway.dialects.fields import Content, bad, fields
from polar.gateway.dialects.openai_responses.tools import TOOL_SEARCH, Toolbox, flat_name
from polar.types import Message, ToolCall

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    # Texts that the provider encrypts when its model writes them. Here they come back as the model wrote them.
    "encrypted_content": "encrypted_content",
}
IGNORED_ITEMS = ("web_search_call", "file_search_call", "mcp_list_tools")
"""Notes of what a provider's own tool did. They hold nothing that the model reads."""
_OUR_ID = re.compile(r"(?:rs|msg|fc|ctc|tsc)_(?P<reply>.+?)_\d+(?P<as_said>_raw)?")


_TOOL_ITEMS = ("tool_search_output", "additional_tools")
"""They bring tools, which each request gathers anew."""


class Turn:
    """One turn of the model while its items are read."""

    def __init__(self) -> None:
        self.content = Content()
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.reply = ""
        """The reply its items come from, as far as their ids say so."""
        self.last = ""
        """Type of its latest item."""

    def __copy__(self) -> Turn:
        turn = Turn()
        turn.content, turn.reasoning, turn.calls = copy(self.content), [*self.reasoning], [*self.calls]
        turn.reply, turn.last = self.reply, self.last
        return turn

    def takes(self, kind: str, reply: str) -> bool:
        """Neighbours are one turn, except what came in two replies, and messages that were sent as two."""
        if self.reply and reply:
            return self.reply == reply
        return not self.last == kind == "message"

    def message(self) -> Message:
        return Message(
            role="assistant",
            content=self.content.text,
            reasoning="".join(self.reasoning),
            tool_calls=tuple(self.calls),
            images=self.content.images,
        )


class Step(NamedTuple):
    """What one item made, and the turn that it left open."""

    messages: tuple[Message, ...]
    turn: Turn | None


class Conversation:
    """The messages of a request as its items are read, one after the other."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._messages: list[Message] = []
        self._turn: Turn | None = None
        self._readers = {
            "message": self._message,
            "agent_message": self._agent_message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "function_call_output": self._output,
            "custom_tool_call": self._custom_tool_call,
            "custom_tool_call_output": self._output,
            "tool_search_call": self._tool_search_call,
            "tool_search_output": self._tool_search_output,
            "additional_tools": self._additional_tools,
        }

    def read(self, history: Sequence[HistoryItem]) -> None:
        """The items of a request. Those known from an earlier one are not read again."""
        known: Step | None = None
        for index, item in enumerate(history):
            if item.made is not None:
                known = item.made
                self._messages += item.made.messages
                continue
            if known is not None:
                self._turn, known = copy(known.turn), None
            before = len(self._messages)
            self.add(item.value, f"input[{index}]")
            if fields(item.value).get("type") not in _TOOL_ITEMS:
                item.made = Step(tuple(self._messages[before:]), copy(self._turn))
        if known is not None:
            self._turn = copy(known.turn)

    def add(self, raw: Any, where: str) -> None:
        item = fields(raw)
        kind: Any = item.get("type") or ("message" if "role" in item else None)
        if kind in IGNORED_ITEMS:
            return
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise bad(_why_not(kind), f"{where}.type")
        reader(item, where)

    def add_message(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def messages(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    def _turn_of(self, item: dict[str, Any], kind: str) -> Turn:
        reply = our_id(item)[0]
        if self._turn is None or not self._turn.takes(kind, reply):
            self._end_turn()
            self._turn = Turn()
        self._turn.reply = self._turn.reply or reply
        self._turn.last = kind
        return self._turn

    def _message(self, item: dict[str, Any], where: str) -> None:
        role: Any = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise bad(f"unknown role {str(role)[:40]!r}", f"{where}.role")
        if role == "assistant":
            read_content(item.get("content"), f"{where}.content", self._turn_of(item, "message").content)
            return
        content = read_content(item.get("content"), f"{where}.content")
        self.add_message(Message(role=_ROLES[role], content=content.text, images=content.images))

    def _agent_message(self, item: dict[str, Any], where: str) -> None:
        """What another agent of the harness says. Its head names sender and kind; what the model wrote for it
        stands behind the head, in a part for texts that the provider would have encrypted."""
        content = read_content(item.get("content"), f"{where}.content")
        self.add_message(Message(role="user", content=content.text, images=content.images))

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        """Its text; what a provider has encrypted says nothing to us, and our own says no more."""
        said = "".join(_texts(item.get("content"), f"{where}.content"))
        said = said or "\n\n".join(_texts(item.get("summary"), f"{where}.summary"))
        self._turn_of(item, "reasoning").reasoning.append(said)

    def _function_call(self, item: dict[str, Any], where: str) -> None:
        given: Any = item.get("arguments")
        self._call(item, where, "" if given is None else reading.arguments_text(given))

    def _custom_tool_call(self, item: dict[str, Any], where: str) -> None:
        given = reading.text(item.get("input"), f"{where}.input")
        as_said = our_id(item)[1]
        self._call(item, where, given if as_said else orjson.dumps({"input": given}).decode())

    def _tool_search_call(self, item: dict[str, Any], where: str) -> None:
        if item.get("execution") != "server":
            given: Any = item.get("arguments")
            self._call(
                {**item, "name": TOOL_SEARCH}, where, reading.arguments_text({} if given is None else given)
            )

    def _call(self, item: dict[str, Any], where: str, arguments: str) -> None:
        namespace = reading.text(item.get("namespace"), f"{where}.namespace")
        name = flat_name(reading.name(item.get("name"), f"{where}.name"), namespace)
        call_id = reading.text(item.get("call_id"), f"{where}.call_id")
        self._turn_of(item, "call").calls.append(ToolCall(name, arguments, call_id))

    def _output(self, item: dict[str, Any], where: str) -> None:
        content = read_content(item.get("output"), f"{where}.output")
        call_id = reading.text(item.get("call_id"), f"{where}.call_id")
        self.add_message(Message(role="tool", content=content.text, images=content.images, tool_call_id=call_id))

    def _tool_search_output(self, item: dict[str, Any], where: str) -> None:
        """The model reads the names; the tools themselves are shown where all tools are."""
        names = self._toolbox.add(item.get("tools"), f"{where}.tools", found=True)
        if item.get("execution") != "server":
            call_id = reading.text(item.get("call_id"), f"{where}.call_id")
            found = orjson.dumps({"tools": names}).decode()
            self.add_message(Message(role="tool", content=found, tool_call_id=call_id))

    def _additional_tools(self, item: dict[str, Any], where: str) -> None:
        self._toolbox.add(item.get("tools"), f"{where}.tools")


def read_conversation(instructions: Any, history: Sequence[HistoryItem], toolbox: Toolbox) -> tuple[Message, ...]:
    conversation = Conversation(toolbox)
    system = reading.text(instructions, "instructions")
    if system:
        conversation.add_message(Message(role="system", content=system))
    conversation.read(history)
    return conversation.messages()


def input_items(given: Any) -> list[Any]:
    """A text is a list of one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found = reading.items(given, "input")
    if not found:
        raise bad("input must be a text or a list that is not empty", "input")
    return found


def read_content(given: Any, where: str, content: Content | None = None) -> Content:
    """A text or a list of parts, added to what is there."""
    content = content or Content()
    if isinstance(given, str):
        content.add_text(given)
        return content
    for index, raw in enumerate(reading.items(given, where)):
        part, place = fields(raw), f"{where}[{index}]"
        kind: Any = part.get("type")
        if kind == "input_image":
            content.add_image(_image(part, place))
        elif isinstance(kind, str) and kind in _TEXT_PARTS:
            content.add_text(reading.text(part.get(_TEXT_PARTS[kind]), f"{place}.{_TEXT_PARTS[kind]}"))
        else:
            raise bad(f"parts of type {str(kind)[:40]!r} are not supported: text and images are", f"{place}.type")
    return content


def our_id(item: dict[str, Any]) -> tuple[str, bool]:
    """The reply an item's id names, and whether it holds a call's arguments as the model said them."""
    given: Any = item.get("id")
    match = _OUR_ID.fullmatch(given) if isinstance(given, str) else None
    return (match["reply"], match["as_said"] is not None) if match else ("", False)


def _image(part: dict[str, Any], where: str) -> str:
    url: Any = part.get("image_url")
    if not isinstance(url, str) or not url:
        raise bad("an image must come with its image_url: no files are kept here", where)
    return url


def _texts(given: Any, where: str) -> list[str]:
    return [reading.text(fields(part).get("text"), where) for part in reading.items(given, where)]


def _why_not(kind: Any) -> str:
    if kind == "item_reference":
        return "nothing is kept between requests: send the item itself and not a reference (store: false)"
    if kind is None:
        return "an item must have a type or a role"
    return f"items of type {str(cast('object', kind))[:40]!r} are not supported"
