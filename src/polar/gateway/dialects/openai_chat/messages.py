"""The history of a Chat Completions request as canonical messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.raw_request import HistoryItem
from polar.types import Message, ToolCall

REFUSED_IN_MESSAGES = {"function_call": "send tool_calls instead", "audio": "messages are text and images"}

_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(history: Sequence[HistoryItem]) -> tuple[Message, ...]:
    """Items known from an earlier request are not read again."""
    return tuple([item.parsed or _read(item, f"messages[{index}]") for index, item in enumerate(history)])


def _read(item: HistoryItem, where: str) -> Message:
    item.parsed = _message(read.fields(item.value), where)
    return item.parsed


def _message(given: dict[str, Any], where: str) -> Message:
    role: Any = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise read.bad(f"unknown role {str(role)[:40]!r}", f"{where}.role")
    read.refuse_fields(given, REFUSED_IN_MESSAGES, f"{where}.")
    content = _content(given.get("content"), f"{where}.content")
    if role == "assistant":
        return _assistant(given, content, where)
    call_id = read.text(given.get("tool_call_id"), f"{where}.tool_call_id") if role == "tool" else ""
    return content.message(_ROLES[role], call_id)


def _assistant(given: dict[str, Any], content: read.Content, where: str) -> Message:
    content.add_text(read.text(given.get("refusal"), f"{where}.refusal"))
    reasoning = [read.text(given.get(key), f"{where}.{key}") for key in ("reasoning_content", "reasoning")]
    calls = read.items(given.get("tool_calls"), f"{where}.tool_calls")
    return Message(
        role="assistant",
        content=content.text,
        reasoning=reasoning[0] or reasoning[1],
        tool_calls=tuple(_call(read.fields(c), f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)),
        images=content.images,
    )


def _content(value: Any, where: str) -> read.Content:
    """Null, a string, or a list of parts."""
    content = read.Content()
    if isinstance(value, str):
        content.add_text(value)
        return content
    for index, part in enumerate(read.items(value, where)):
        _add_part(content, read.fields(part), f"{where}[{index}]")
    return content


def _add_part(content: read.Content, part: dict[str, Any], where: str) -> None:
    kind = part.get("type", "text")
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else read.fields(image).get("url")
        content.add_image(read.name(url, f"{where}.image_url"))
        return
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise read.bad(f"{where} must be a part with a text or an image", where)
    content.add_text(text)


def _call(raw: dict[str, Any], where: str) -> ToolCall:
    call_id = read.text(raw.get("id"), f"{where}.id")
    if raw.get("type") == "custom":
        custom = read.fields(raw.get("custom"))
        arguments = {"input": read.text(custom.get("input"), f"{where}.custom.input")}
        name = read.name(custom.get("name"), f"{where}.custom.name")
        return ToolCall(name, read.arguments_text(arguments), call_id)
    function = read.fields(raw.get("function"))
    given = function.get("arguments")
    name = read.name(function.get("name"), f"{where}.function.name")
    return ToolCall(name, "" if given is None else read.arguments_text(given), call_id)
