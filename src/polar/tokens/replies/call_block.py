"""One Hermes-style tool call: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

One policy for what cannot be read: it stays in the content, word for word, so that the harness and the
trainer see what the model really wrote.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard

import orjson

from polar.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def read_call(block: str) -> ToolCall | None:
    """The call that stands between the two tags, or None."""
    try:
        return _call(block.strip())
    except (ValueError, RecursionError):
        return None


def _call(body: str) -> ToolCall | None:
    fields = _loaded(body)
    if not _is_object(fields):
        return None
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not is_text(name):
        return None
    if isinstance(arguments, str):  # models quote the object now and then
        spelled = arguments if is_text(arguments) and _is_object(_loaded(arguments)) else ""
    else:
        spelled = _spelling(body, arguments) if _is_object(arguments) else ""
    return ToolCall(name=name, arguments=spelled) if spelled and _can_be_sent(spelled) else None


def _can_be_sent(arguments: str) -> bool:
    """Whether a dialect that sends them as an object can write them: not nested too deep, no half of a character,
    no number beyond all bounds."""
    try:
        orjson.dumps(orjson.loads(arguments))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return False
    return True


def is_text(name: str) -> bool:
    """Not empty, and no half of a surrogate pair in it, which JSON can spell and UTF-8 cannot."""
    return bool(name) and not any("\ud800" <= char <= "\udfff" for char in name)


def _loaded(text: str) -> Any:
    return _STRICT.decode(text)


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Made once: making a decoder takes longer than reading a call with it.
_STRICT, _PLAIN = json.JSONDecoder(parse_constant=_refuse), json.JSONDecoder()


def _spelling(body: str, arguments: dict[str, Any]) -> str:
    """The arguments as the model spelled them, which a second dump would not reproduce."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = _PLAIN.raw_decode(body, match.end())
        except ValueError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments)
