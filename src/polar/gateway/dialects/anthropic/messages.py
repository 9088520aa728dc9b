"""The history of an Anthropic request: content blocks to canonical messages, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.anthropic.tools import ToolChange, read_tool, without_digits
from polar.gateway.dialects.raw_request import HistoryItem
from polar.types import Message, ToolCall

Block = dict[str, Any]

_UNREADABLE = ("redacted_thinking", "fallback")
"""Blocks of an assistant's turn that hold nothing a model could read."""
_BILLING = "x-anthropic-billing-header:"
"""Prefix of a system text for the provider's billing. It differs between conversations and is not shown."""
_CONTENT = "messages[].content"


class AnthropicHistory:
    def __init__(self, system: Any, history: Sequence[HistoryItem]) -> None:
        """Items known from an earlier request are not read again."""
        texts = [_text(block, "system") for block in _blocks(system, "system")]
        self.messages = _system_message([text for text in texts if not text.startswith(_BILLING)])
        self.changes: list[ToolChange] = []
        """Tools that messages add or remove, in order."""
        for item in history:
            if item.parsed is None:
                messages, changes = len(self.messages), len(self.changes)
                self._add(read.fields(item.value))
                item.parsed = self.messages[messages:], self.changes[changes:]
            else:
                self.messages += item.parsed[0]
                self.changes += item.parsed[1]

    def _add(self, entry: dict[str, Any]) -> None:
        role = entry.get("role")
        blocks = _blocks(entry.get("content"), _CONTENT)
        if role == "user":
            self._add_user(blocks)
        elif role == "assistant":
            self.messages.append(_assistant(blocks))
        elif role == "system":
            self._add_system(blocks)
        else:
            raise read.bad("messages[].role must be user, assistant or system", "messages[].role")

    def _add_system(self, blocks: list[Block]) -> None:
        texts: list[str] = []
        for block in blocks:
            if block.get("type") in ("tool_addition", "tool_removal"):
                self.changes += _tool_change(block)
            else:
                texts.append(_text(block, _CONTENT))
        self.messages += _system_message(texts)

    def _add_user(self, blocks: list[Block]) -> None:
        """Each tool result becomes a message of its own, and so does the content between results."""
        before = len(self.messages)
        content = read.Content()
        for block in blocks:
            if block.get("type") == "tool_result":
                self._add_content(content)
                content = read.Content()
                self.messages.append(self._result(block))
            else:
                _add_part(content, block)
        self._add_content(content, even_if_empty=len(self.messages) == before)

    def _add_content(self, content: read.Content, *, even_if_empty: bool = False) -> None:
        if content.text or content.images or even_if_empty:
            self.messages.append(content.message("user"))

    def _result(self, result: Block) -> Message:
        content = read.Content()
        for block in _blocks(result.get("content"), _CONTENT):
            if block.get("type") == "tool_reference":
                tool = read.name(block.get("tool_name"), "messages[].content[].tool_name")
                content.add_text(f"\nTool loaded: {tool}" if content.text else f"Tool loaded: {tool}")
                self.changes.append(ToolChange(tool))
            else:
                _add_part(content, block)
        call_id = read.text(result.get("tool_use_id"), "messages[].content[].tool_use_id")
        return content.message("tool", call_id, is_error=bool(result.get("is_error")))


def _blocks(content: Any, where: str) -> list[Block]:
    """A string counts as a list of one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    found = read.items(content, where)
    if not all(isinstance(block, dict) for block in found):
        raise read.bad(f"{where} must be a string or a list of blocks", where)
    return found


def _text(block: Block, where: str) -> str:
    kind = block.get("type")
    if kind != "text":
        word = without_digits(kind) if isinstance(kind, str) else "nameless"
        raise read.bad(f"{word} blocks are not supported in {where}", where)
    return read.text(block.get("text"), f"{where}[].text")


def _system_message(texts: list[str]) -> list[Message]:
    content = "\n\n".join(text for text in texts if text)
    return [Message(role="system", content=content)] if content else []


def _add_part(content: read.Content, block: Block) -> None:
    if block.get("type") == "image":
        content.add_image(_image_url(read.fields(block.get("source"))))
    else:
        content.add_text(_text(block, _CONTENT))


def _image_url(source: dict[str, Any]) -> str:
    where = "messages[].content[].source"
    if source.get("type") == "url":
        return read.name(source.get("url"), f"{where}.url")
    if source.get("type") == "base64":
        media = read.name(source.get("media_type"), f"{where}.media_type")
        return f"data:{media};base64,{read.name(source.get('data'), f'{where}.data')}"
    raise read.bad("an image needs its bytes or a URL", where)


def _assistant(blocks: list[Block]) -> Message:
    content, reasoning, calls = "", "", list[ToolCall]()
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            reasoning += read.text(block.get("thinking"), "messages[].content[].thinking")
        elif kind == "tool_use":
            calls.append(_tool_call(block))
        elif kind not in _UNREADABLE:
            content += _text(block, _CONTENT)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def _tool_call(block: Block) -> ToolCall:
    where = "messages[].content[]"
    return ToolCall(
        name=read.name(block.get("name"), f"{where}.name"),
        arguments=orjson.dumps(read.mapping(block.get("input"), f"{where}.input")).decode(),
        call_id=read.text(block.get("id"), f"{where}.id"),
    )


def _tool_change(block: Block) -> list[ToolChange]:
    """Adds or removes a tool that is declared elsewhere, or adds one that the block defines."""
    where = f"{_CONTENT}[].tool"
    tool = read.fields(block.get("tool"))
    added = block.get("type") == "tool_addition"
    if tool.get("type") == "tool_definition" and added:
        definition = read_tool(tool.get("definition"), f"{where}.definition")
        return [ToolChange(definition.name, definition=definition)] if definition else []
    if tool.get("type") != "tool_reference":
        raise read.bad(f"{where} must be a tool_reference or a tool_definition", where)
    return [ToolChange(read.name(tool.get("name"), f"{where}.name"), present=added)]
