"""When two messages are the same message, whatever a harness did to their spelling.

For every harness: formatting of JSON arguments, white space at the ends of an assistant's text, tool-call ids, and
reasoning that is not sent back. Further habits are the harness's own, told by the `Matching` of its profile; see
docs/design/matching.md. Everything else makes a different message.

A message is never compared with another one. It is normalised by itself into a key, so that a whole history is
matched by one digest; what was overlooked is found out afterwards, for the one match that is taken.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from polar.tokens.replies.arguments import (
    coerced,
    fields,
    is_default,
    is_object,
    loaded,
    schemas_of,
    spelled,
    too_many_values,
)
from polar.types import Matching, Message, Tool, ToolCall

MOST_COMPARED_VALUES = 2**14
"""In the arguments of a call; those with more are compared as they are spelled."""
_LINE = "\0"
"""Stands for a volatile line: a message that has one is not the message that has none."""


class Declared(msgspec.Struct, frozen=True):
    """The tools of a conversation, as far as they decide what its calls mean."""

    path: bytes
    """Digest of the conversation with these tools before its first message."""
    arguments: dict[str, dict[str, Any]] = {}
    """The schema of each argument, by tool and argument."""


class Matcher:
    def __init__(self, matching: Matching | None = None) -> None:
        self._matching = matching or Matching()
        self._volatile = [
            (line.role, re.compile(f"^(?:{line.pattern})$", re.MULTILINE))
            for line in self._matching.volatile_lines
        ]
        self._rewrites = [
            ((rule.tool, rule.argument), re.compile(rule.pattern), rule.replacement)
            for rule in self._matching.argument_rewrites
        ]

    def declared(self, tools: tuple[Tool, ...]) -> Declared:
        schemas = {tool.name: schemas_of(tool) for tool in tools}
        return Declared(extend_path(b"", tools_key(tools)), schemas)

    def key(self, message: Message, declared: Declared) -> bytes:
        """Equal for messages that count as the same."""
        calls = [[self._name(call, declared), self._arguments_key(call, declared)] for call in message.tool_calls]
        images = [[image.url, image.at] for image in message.images]
        return orjson.dumps([message.role, self._content(message), calls, images])

    def tolerances(self, stored: Message, again: Message) -> tuple[str, ...]:
        """In which ways a message that matches differs from the stored one all the same."""
        found: list[str] = []
        if stored.content != again.content:
            found.append("whitespace" if stored.role == "assistant" else "volatile_line")
        if stored.reasoning != again.reasoning:
            found.append("reasoning_changed" if again.reasoning else "reasoning_dropped")
        pairs = list(zip(stored.tool_calls, again.tool_calls, strict=True))
        if any(a.name != b.name for a, b in pairs):
            found.append("name_lowered")
        found += sorted({name for a, b in pairs for name in _argument_tolerances(a.arguments, b.arguments)})
        if stored.tool_call_id != again.tool_call_id or any(a.call_id != b.call_id for a, b in pairs):
            found.append("ids_renamed")
        return tuple(found)

    def _content(self, message: Message) -> str:
        if message.role == "assistant":
            return message.content.strip()
        content = message.content
        for role, line in self._volatile:
            if role == message.role:
                content = line.sub(_LINE, content)
        return content

    def _name(self, call: ToolCall, declared: Declared) -> str:
        lowered = call.name.lower()
        known = declared.arguments
        repaired = self._matching.lowers_tool_names and call.name not in known and lowered in known
        return lowered if repaired else call.name

    def _arguments_key(self, call: ToolCall, declared: Declared) -> str:
        if too_many_values(call.arguments, MOST_COMPARED_VALUES):
            return call.arguments
        try:
            given = loaded(call.arguments)
            if is_object(given):
                given = self._normal(self._name(call, declared), given, declared)
            return spelled(given)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
            return call.arguments  # no JSON, or nested too deep to be written again

    def _normal(self, tool: str, given: dict[str, Any], declared: Declared) -> dict[str, Any]:
        schemas = declared.arguments.get(tool, {})
        normal: dict[str, Any] = {}
        for name, value in given.items():
            schema = fields(schemas.get(name))
            if self._matching.coerces_arguments:
                value = coerced(value, schema)
            value = self._rewritten((tool, name), value)
            if not (self._matching.adds_defaults and is_default(value, schema)):
                normal[name] = value
        return normal

    def _rewritten(self, place: tuple[str, str], value: Any) -> Any:
        for rewritten_place, pattern, replacement in self._rewrites:
            if rewritten_place == place and isinstance(value, str):
                value = pattern.sub(replacement, value)
        return value


def message_key(message: Message) -> bytes:
    """Equal for messages that are the same whatever the harness."""
    return Matcher().key(message, Declared(b""))


def tools_key(tools: Iterable[Tool]) -> bytes:
    return orjson.dumps(
        [msgspec.to_builtins(tool) for tool in tools], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    )


def extend_path(path: bytes, key: bytes) -> bytes:
    """Digest of a path of messages, one message longer."""
    return hashlib.blake2b(path + key, digest_size=16).digest()


def _argument_tolerances(stored: str, again: str) -> set[str]:
    if stored == again:
        return set()
    try:
        before, now = loaded(stored), loaded(again)
    except (orjson.JSONDecodeError, RecursionError):
        before = now = None
    found: set[str] = set()
    if is_object(before) and is_object(now):
        for name in {*before, *now}:
            if name not in before or name not in now:
                found.add("default_arguments")
            elif before[name] != now[name]:
                rewritten = isinstance(before[name], str) and isinstance(now[name], str)
                found.add("argument_rewritten" if rewritten else "arguments_coerced")
    return found or {"arguments_reformatted"}
