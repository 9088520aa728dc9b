"""Anthropic messages: content blocks to canonical messages, in the order they stand in."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects import fields as read
from polar.gateway.dialects.anthropic.tools import ToolChange, plain_word, read_tool
from polar.types import Message, ToolCall

Block = dict[str, Any]

_UNSHOWN = ("redacted_thinking", "fallback")
"""Blocks of an assistant's turn that hold nothing a model could read."""
_BILLING = "x-anthropic-billing-header:"
"""Begins a system text for the provider's accounts, not for a model; each conversation has its own."""
_CONTENT = "messages[].content"


def read_system(raw: Any) -> list[Message]:
    """The request's `system`: one message, or none if it says nothing."""
    texts = [_text(block, "system") for block in _blocks(raw, "system")]
    return _system_message([text for text in texts if not text.startswith(_BILLING)])


class History:
    def __init__(self, system: list[Message]) -> None:
        self.messages = system
        self.changes: list[ToolChange] = []
        """What the conversation does to the tools on its way."""

    def extend(self, other: History) -> None:
        self.messages += other.messages
        self.changes += other.changes

    def add(self, raw: Any) -> None:
        entry = read.fields(raw)
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
        """Results become messages of their own, and so does what is said between them."""
        before = len(self.messages)
        said = read.Content()
        for block in blocks:
            if block.get("type") == "tool_result":
                self._add_said(said)
                said = read.Content()
                self.messages.append(self._result(block))
            else:
                _add_part(said, block)
        self._add_said(said, even_if_empty=len(self.messages) == before)

    def _add_said(self, said: read.Content, *, even_if_empty: bool = False) -> None:
        if said.text or said.images or even_if_empty:
            self.messages.append(Message(role="user", content=said.text, images=said.images))

    def _result(self, result: Block) -> Message:
        said = read.Content()
        for block in _blocks(result.get("content"), _CONTENT):
            if block.get("type") == "tool_reference":
                self._refer(said, read.name(block.get("tool_name"), "messages[].content[].tool_name"))
            else:
                _add_part(said, block)
        return Message(
            role="tool",
            content=said.text,
            tool_call_id=read.text(result.get("tool_use_id"), "messages[].content[].tool_use_id"),
            images=said.images,
            is_error=bool(result.get("is_error")),
        )

    def _refer(self, said: read.Content, tool: str) -> None:
        said.add_text(f"\nTool loaded: {tool}" if said.text else f"Tool loaded: {tool}")
        self.changes.append(ToolChange(tool))


def _blocks(content: Any, where: str) -> list[Block]:
    """A plain text is a list of one text block: the same words are the same message in either shape."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    found = read.items(content, where)
    if not all(isinstance(block, dict) for block in found):
        raise read.bad(f"{where} must be a text or a list of blocks", where)
    return [read.fields(block) for block in found]


def _text(block: Block, where: str) -> str:
    if block.get("type") != "text":
        raise _unsupported(block, where)
    return read.text(block.get("text"), f"{where}[].text")


def _unsupported(block: Block, where: str) -> Exception:
    kind = block.get("type")
    word = plain_word(kind) if isinstance(kind, str) else "nameless"
    return read.bad(f"{word} blocks are not supported in {where}", where)


def _system_message(texts: list[str]) -> list[Message]:
    said = "\n\n".join(text for text in texts if text)
    return [Message(role="system", content=said)] if said else []


def _add_part(said: read.Content, block: Block) -> None:
    if block.get("type") == "image":
        said.add_image(_image_url(read.fields(block.get("source"))))
    else:
        said.add_text(_text(block, _CONTENT))


def _image_url(source: dict[str, Any]) -> str:
    where = "messages[].content[].source"
    if source.get("type") == "url":
        return read.name(source.get("url"), f"{where}.url")
    if source.get("type") == "base64":
        media = read.name(source.get("media_type"), f"{where}.media_type")
        return f"data:{media};base64,{read.name(source.get('data'), f'{where}.data')}"
    raise read.bad("an image must come with its bytes or an address", where)


def _assistant(blocks: list[Block]) -> Message:
    content, reasoning, calls = "", "", list[ToolCall]()
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            reasoning += read.text(block.get("thinking"), "messages[].content[].thinking")
        elif kind == "tool_use":
            calls.append(_tool_call(block))
        elif kind not in _UNSHOWN:
            content += _text(block, _CONTENT)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def _tool_call(block: Block) -> ToolCall:
    where = "messages[].content[]"
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        raise read.bad(f"{where}.input must be an object", f"{where}.input")
    return ToolCall(
        name=read.name(block.get("name"), f"{where}.name"),
        arguments=orjson.dumps(read.fields(arguments)).decode(),
        call_id=read.text(block.get("id"), f"{where}.id"),
    )


def _tool_change(block: Block) -> list[ToolChange]:
    """A tool declared elsewhere that comes or goes, or one that is defined on the spot."""
    where = f"{_CONTENT}[].tool"
    tool = read.fields(block.get("tool"))
    added = block.get("type") == "tool_addition"
    if tool.get("type") == "tool_definition" and added:
        definition = read_tool(tool.get("definition"), f"{where}.definition")
        return [ToolChange(definition.name, definition=definition)] if definition else []
    if tool.get("type") != "tool_reference":
        raise read.bad(f"{where} must refer to a tool of the request or define one", where)
    return [ToolChange(read.name(tool.get("name"), f"{where}.name"), present=added)]
