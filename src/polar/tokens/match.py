"""When two messages are the same message, whatever a harness did to their spelling.

The rules tolerate formatting of JSON arguments, white space at the ends of an assistant's text, tool-call ids,
and reasoning that a harness does not send back. Everything else makes a different message.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import msgspec
import orjson

from polar.types import Message, Tool, ToolCall


def message_key(message: Message) -> bytes:
    """Equal for messages that count as the same."""
    content = message.content.strip() if message.role == "assistant" else message.content
    calls = [(call.name, _arguments_key(call)) for call in message.tool_calls]
    return orjson.dumps([message.role, content, calls])


def tools_key(tools: tuple[Tool, ...]) -> bytes:
    return orjson.dumps(
        [msgspec.to_builtins(tool) for tool in tools], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    )


def extend_path(path: bytes, key: bytes) -> bytes:
    """Digest of a path of messages, one message longer."""
    return hashlib.blake2b(path + key, digest_size=16).digest()


def tolerances(stored: Message, echo: Message) -> tuple[str, ...]:
    """In which ways an echo that matches differs from what was sent all the same."""
    found: list[str] = []
    if stored.content != echo.content:
        found.append("whitespace")
    if stored.reasoning != echo.reasoning:
        found.append("reasoning_changed" if echo.reasoning else "reasoning_dropped")
    pairs = list(zip(stored.tool_calls, echo.tool_calls, strict=True))
    if any(a.arguments != b.arguments for a, b in pairs):
        found.append("arguments_reformatted")
    if any(a.call_id != b.call_id for a, b in pairs):
        found.append("ids_renamed")
    return tuple(found)


def _arguments_key(call: ToolCall) -> Any:
    try:
        value = _plain_numbers(orjson.loads(call.arguments or "{}"))
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (
        orjson.JSONDecodeError,
        orjson.JSONEncodeError,
        RecursionError,
    ):  # no JSON, or nested too deep to be written again
        return call.arguments


def _plain_numbers(value: Any) -> Any:
    """1.0 as 1: a harness in JavaScript writes the second for the first."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
