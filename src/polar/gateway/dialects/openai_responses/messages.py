"""The input of a Responses request: a list of items to canonical messages.

The provider writes one turn of the model as several items. They become one message again, or the model would see
several turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.openai_responses.tools import TOOL_SEARCH, Toolbox, flat_name
from polar.gateway.dialects.raw_request import HistoryItem
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
    # The provider encrypts this text of its own models. Here it comes back as the model wrote it.
    "encrypted_content": "encrypted_content",
}
IGNORED_ITEMS = ("web_search_call", "file_search_call", "mcp_list_tools")
"""Records of what a provider's own tool did. They hold nothing that the model reads."""
_TOOL_ITEMS = ("tool_search_output", "additional_tools")
"""Items that add tools. They are read again in each request."""
_OUR_ID = re.compile(r"(?:rs|msg|fc|ctc|tsc)_(?P<reply>.+?)_\d+(?P<raw>_raw)?")


class ResponsesHistory:
    def __init__(self, instructions: Any, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        system = read.text(instructions, "instructions")
        self._messages = [Message(role="system", content=system)] if system else []
        self._turn: read.AssistantTurn | None = None
        """The turn of the model that the next item may continue."""
        self._turn_reply = ""
        """Id of the reply that the turn was, if an item's id names one."""
        self._turn_last = ""
        """Kind of the turn's latest item."""
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

    def read(self, history: Sequence[HistoryItem]) -> tuple[Message, ...]:
        """The messages of a request. Items known from an earlier request are not read again."""
        for index, item in enumerate(history):
            if item.parsed is not None:
                messages, self._turn, self._turn_reply, self._turn_last = item.parsed
                self._messages += messages
                continue
            before = len(self._messages)
            self._add(read.fields(item.value), f"input[{index}]")
            if read.fields(item.value).get("type") not in _TOOL_ITEMS:
                item.parsed = self._messages[before:], self._turn, self._turn_reply, self._turn_last
        self._end_turn()
        return tuple(self._messages)

    def _add(self, item: dict[str, Any], where: str) -> None:
        kind: Any = item.get("type") or ("message" if "role" in item else None)
        if kind in IGNORED_ITEMS:
            return
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise read.bad(_why_not(kind), f"{where}.type")
        reader(item, where)

    def _add_message(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn, self._turn_reply, self._turn_last = None, "", ""

    def _extend_turn(self, item: dict[str, Any], kind: str, part: read.AssistantTurn) -> None:
        """Neighbouring items are one turn, except items of two replies and two messages in a row."""
        reply = _reply_id(item)[0]
        is_new = self._turn_last == kind == "message"
        if self._turn_reply and reply:
            is_new = self._turn_reply != reply
        if is_new:
            self._end_turn()
        self._turn = part if self._turn is None else self._turn.plus(part)
        self._turn_reply, self._turn_last = self._turn_reply or reply, kind

    def _message(self, item: dict[str, Any], where: str) -> None:
        role: Any = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise read.bad(f"unknown role {str(role)[:40]!r}", f"{where}.role")
        content = _content(item.get("content"), f"{where}.content")
        if role == "assistant":
            self._extend_turn(item, "message", read.AssistantTurn((content.text,), images=content.images))
        else:
            self._add_message(content.message(_ROLES[role]))

    def _agent_message(self, item: dict[str, Any], where: str) -> None:
        """A message from another agent of the harness: a head with sender and kind, then what that agent's model
        wrote, in an `encrypted_content` part."""
        self._add_message(_content(item.get("content"), f"{where}.content").message("user"))

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        """The text. `encrypted_content` is ignored: ours holds only the call's id, and others cannot be read."""
        text = "".join(_texts(item.get("content"), f"{where}.content"))
        text = text or "\n\n".join(_texts(item.get("summary"), f"{where}.summary"))
        self._extend_turn(item, "reasoning", read.AssistantTurn(thoughts=(text,)))

    def _function_call(self, item: dict[str, Any], where: str) -> None:
        given: Any = item.get("arguments")
        self._call(item, where, "" if given is None else read.arguments_text(given))

    def _custom_tool_call(self, item: dict[str, Any], where: str) -> None:
        given = read.text(item.get("input"), f"{where}.input")
        is_raw = _reply_id(item)[1]
        self._call(item, where, given if is_raw else orjson.dumps({"input": given}).decode())

    def _tool_search_call(self, item: dict[str, Any], where: str) -> None:
        if item.get("execution") != "server":
            given: Any = item.get("arguments")
            arguments = read.arguments_text({} if given is None else given)
            self._call({**item, "name": TOOL_SEARCH}, where, arguments)

    def _call(self, item: dict[str, Any], where: str, arguments: str) -> None:
        namespace = read.text(item.get("namespace"), f"{where}.namespace")
        name = flat_name(read.name(item.get("name"), f"{where}.name"), namespace)
        call_id = read.text(item.get("call_id"), f"{where}.call_id")
        self._extend_turn(item, "call", read.AssistantTurn(calls=(ToolCall(name, arguments, call_id),)))

    def _output(self, item: dict[str, Any], where: str) -> None:
        content = _content(item.get("output"), f"{where}.output")
        self._add_message(content.message("tool", read.text(item.get("call_id"), f"{where}.call_id")))

    def _tool_search_output(self, item: dict[str, Any], where: str) -> None:
        """The message holds the names; the tools themselves join the request's tools."""
        names = self._toolbox.add(item.get("tools"), f"{where}.tools", found=True)
        if item.get("execution") != "server":
            call_id = read.text(item.get("call_id"), f"{where}.call_id")
            found = orjson.dumps({"tools": names}).decode()
            self._add_message(Message(role="tool", content=found, tool_call_id=call_id))

    def _additional_tools(self, item: dict[str, Any], where: str) -> None:
        self._toolbox.add(item.get("tools"), f"{where}.tools")


def _content(given: Any, where: str) -> read.Content:
    """A string or a list of parts."""
    content = read.Content()
    if isinstance(given, str):
        content.add_text(given)
        return content
    for index, raw in enumerate(read.items(given, where)):
        part, place = read.fields(raw), f"{where}[{index}]"
        kind: Any = part.get("type")
        if kind == "input_image":
            content.add_image(_image(part, place))
        elif isinstance(kind, str) and kind in _TEXT_PARTS:
            field = _TEXT_PARTS[kind]
            content.add_text(read.text(part.get(field), f"{place}.{field}"))
        else:
            raise read.bad(f"parts of type {str(kind)[:40]!r} are not supported", f"{place}.type")
    return content


def _reply_id(item: dict[str, Any]) -> tuple[str, bool]:
    """The reply that an item's id names, and whether its input is a call's raw arguments (`OutputWriter.call`)."""
    given: Any = item.get("id")
    match = _OUR_ID.fullmatch(given) if isinstance(given, str) else None
    return (match["reply"], match["raw"] is not None) if match else ("", False)


def _image(part: dict[str, Any], where: str) -> str:
    url: Any = part.get("image_url")
    if not isinstance(url, str) or not url:
        raise read.bad("an image must have an image_url: files are not stored here", where)
    return url


def _texts(given: Any, where: str) -> list[str]:
    return [read.text(read.fields(part).get("text"), where) for part in read.items(given, where)]


def _why_not(kind: object) -> str:
    if kind == "item_reference":
        return "nothing is stored between requests: send the item itself instead of a reference (store: false)"
    if kind is None:
        return "an item must have a type or a role"
    return f"items of type {str(kind)[:40]!r} are not supported"
