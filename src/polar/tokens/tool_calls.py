"""Hermes-style tool calls in text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

One policy for what cannot be read: it stays in the content, word for word, so that the harness and the
trainer see what the model really wrote.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from polar.types import Message, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPEN}(.*?)(?:{CLOSE}|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def parse_tool_calls(text: str) -> Message:
    """An assistant message from its text. A last block may lack its closing tag if its JSON is complete."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    end = 0
    for block in _BLOCK.finditer(text):
        call = _read_call(block.group(1).strip())
        if call is None:
            continue
        calls.append(call)
        kept.append(text[end : block.start()])
        end = block.end()
    kept.append(text[end:])
    content = "".join(kept)
    # White space around calls is layout; a reply that is only text is kept to the letter.
    return Message(role="assistant", content=content.strip() if calls else content, tool_calls=tuple(calls))


def _read_call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not is_text(name) or not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments=_spelling(body, cast("dict[str, Any]", arguments)))


def is_text(name: str) -> bool:
    """Not empty, and no half of a surrogate pair in it, which JSON can spell and UTF-8 cannot."""
    return bool(name) and not any("\ud800" <= char <= "\udfff" for char in name)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _spelling(body: str, arguments: dict[str, Any]) -> str:
    """The arguments as the model spelled them, which a second dump would not reproduce."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = json.JSONDecoder().raw_decode(body, match.end())
        except ValueError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments)
