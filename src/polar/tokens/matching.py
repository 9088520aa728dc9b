"""When two messages count as the same although the harness changed their spelling.

Any harness may reformat JSON arguments, change white space at the ends of an assistant's text, rename tool-call
ids and leave reasoning out. Other tolerances belong to one harness and come from the `Matching` of its profile
(docs/design/matching.md). Any other difference makes a different message.

Messages are never compared in pairs. Each is normalised to a key, and the running digest of the keys is the path
of a history, so one lookup matches a whole history. Only for the match that is chosen are the tolerances
determined.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import msgspec
import orjson

from polar.tokens.json_values import holds_more_values
from polar.tokens.sequences import first_difference
from polar.types import Matching, Message, Tool, ToolCall

MOST_COMPARED_VALUES = 2**14
"""Tool-call arguments with more JSON values than this are compared as text."""
EXACT_INTEGERS = 2**53
"""A double represents every integer below this exactly; JavaScript rounds larger ones."""
MOST_REQUESTS = 8
MOST_CHARACTERS = 4 * 2**20
"""Limit on all remembered requests together; the newest is kept at any size. Comparing this much takes at most a
millisecond."""
_LINE = "\0"
"""Replaces a volatile line, so that a message with such a line differs from one without."""
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class ToolDeclarations(msgspec.Struct, frozen=True):
    """The tools of a conversation, as far as matching needs them."""

    path: bytes
    """Path of a conversation with these tools, before its first message."""
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

    def declarations(self, tools: tuple[Tool, ...]) -> ToolDeclarations:
        schemas = {tool.name: _object(tool.parameters.get("properties")) for tool in tools}
        return ToolDeclarations(extend_path(b"", tools_key(tools)), schemas)

    def key(self, message: Message, declarations: ToolDeclarations) -> bytes:
        """Equal for messages that count as the same."""
        names = declarations.arguments
        calls = [[self._name(call, names), self._arguments_key(call, names)] for call in message.tool_calls]
        images = [[image.url, image.at] for image in message.images]
        return orjson.dumps([message.role, self._content(message), calls, images])

    def tolerances(self, stored: Message, again: Message) -> tuple[str, ...]:
        """How a message that matches a stored one nevertheless differs from it."""
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

    def _name(self, call: ToolCall, schemas: dict[str, dict[str, Any]]) -> str:
        lowered = call.name.lower()
        repaired = self._matching.lowers_tool_names and call.name not in schemas and lowered in schemas
        return lowered if repaired else call.name

    def _arguments_key(self, call: ToolCall, schemas: dict[str, dict[str, Any]]) -> str:
        if holds_more_values(call.arguments, MOST_COMPARED_VALUES):
            return call.arguments
        try:
            given = _parsed(call.arguments)
            if _is_object(given):
                tool = self._name(call, schemas)
                given = self._normalised(tool, given, schemas.get(tool, {}))
            return _canonical(given)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
            return call.arguments  # not JSON, or nested too deep to be written again

    def _normalised(self, tool: str, given: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
        normalised: dict[str, Any] = {}
        for name, value in given.items():
            schema = _object(schemas.get(name))
            if self._matching.coerces_arguments:
                value = _coerced(value, schema)
            for target, pattern, replacement in self._rewrites:
                if target == (tool, name) and isinstance(value, str):
                    value = pattern.sub(replacement, value)
            if not (self._matching.adds_defaults and _is_default(value, schema)):
                normalised[name] = value
        return normalised


class RequestPaths(NamedTuple):
    """A request with running values: each list has one entry more than there are messages."""

    messages: tuple[Message, ...]
    paths: list[bytes]
    characters: list[int]
    empty_turns: list[int]
    """Assistant turns without content. Harnesses leave them in the history after a broken reply."""


class PathIndex:
    """Computes the paths of requests. The newest requests are remembered, because the next one usually begins with
    all of one of them; several, because the conversations of a session may take turns."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self._recent: list[RequestPaths] = []
        """The latest first."""
        self._declarations: tuple[tuple[Tool, ...], ToolDeclarations] | None = None
        """Of the latest request."""

    def of(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> RequestPaths:
        declarations, messages = self._declare(tools), tuple(messages)
        before, known = self._longest(messages, declarations.path)
        paths = before.paths[: known + 1] if before else [declarations.path]
        characters = before.characters[: known + 1] if before else [0]
        empty_turns = before.empty_turns[: known + 1] if before else [0]
        paths += self.extend(paths[-1], messages[known:], declarations)[1:]
        for message in messages[known:]:
            characters.append(characters[-1] + characters_of(message))
            empty_turns.append(empty_turns[-1] + is_empty_turn(message))
        request = RequestPaths(messages, paths, characters, empty_turns)
        self._remember(request, replaced=before if before and 2 * known >= len(before.messages) else None)
        return request

    def extend(self, start: bytes, messages: Iterable[Message], declarations: ToolDeclarations) -> list[bytes]:
        """The path `start`, and the path after each message."""
        paths = [start]
        for message in messages:
            paths.append(extend_path(paths[-1], self.matcher.key(message, declarations)))
        return paths

    def new_characters(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> int:
        """Size of a request without the messages that a remembered request begins with."""
        _, known = self._longest(tuple(messages), self._declare(tools).path)
        return sum(map(characters_of, messages[known:]))

    def _declare(self, tools: tuple[Tool, ...]) -> ToolDeclarations:
        if self._declarations is None or self._declarations[0] != tools:
            self._declarations = (tools, self.matcher.declarations(tools))
        return self._declarations[1]

    def _longest(self, messages: tuple[Message, ...], start: bytes) -> tuple[RequestPaths | None, int]:
        """The remembered request that shares most messages with this one, and how many. `start`: the path before
        the first message."""
        best, most = None, 0
        for recent in self._recent:
            common = first_difference(recent.messages, messages) if recent.paths[0] == start else 0
            if common > most:
                best, most = recent, common
        return best, most

    def _remember(self, request: RequestPaths, replaced: RequestPaths | None) -> None:
        kept, room = [request], MOST_CHARACTERS - request.characters[-1]
        for recent in self._recent:
            room -= recent.characters[-1] if recent is not replaced else 0
            if recent is not replaced and room >= 0:
                kept.append(recent)
        self._recent = kept[:MOST_REQUESTS]


def characters_of(message: Message) -> int:
    arguments = sum(len(call.arguments) for call in message.tool_calls)
    images = sum(len(image.url) for image in message.images)
    return len(message.content) + len(message.reasoning) + arguments + images


def is_empty_turn(message: Message) -> bool:
    return message.role == "assistant" and not (message.content or message.reasoning or message.tool_calls)


def message_key(message: Message) -> bytes:
    """Equal for messages that count as the same with every harness."""
    return Matcher().key(message, ToolDeclarations(b""))


def tools_key(tools: Iterable[Tool]) -> bytes:
    return orjson.dumps(
        [msgspec.to_builtins(tool) for tool in tools], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    )


def extend_path(path: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(path + key, digest_size=16).digest()


def _argument_tolerances(stored: str, again: str) -> set[str]:
    if stored == again:
        return set()
    try:
        before, now = _parsed(stored), _parsed(again)
    except (orjson.JSONDecodeError, RecursionError):
        before = now = None
    found: set[str] = set()
    if _is_object(before) and _is_object(now):
        for name in {*before, *now}:
            if name not in before or name not in now:
                found.add("default_arguments")
            elif before[name] != now[name]:
                rewritten = isinstance(before[name], str) and isinstance(now[name], str)
                found.add("argument_rewritten" if rewritten else "arguments_coerced")
    return found or {"arguments_reformatted"}


def _parsed(arguments: str) -> Any:
    """The JSON value; an empty text is an empty object. Numbers are those of JavaScript, in which most harnesses
    are written: 1.0 is 1, and what a double cannot hold is rounded."""
    return _plain_numbers(orjson.loads(arguments or "{}"))


def _canonical(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _is_default(value: Any, schema: dict[str, Any]) -> bool:
    """Compared as JSON, in which 0 is not false."""
    return "default" in schema and _canonical(value) == _canonical(_plain_numbers(schema["default"]))


def _coerced(value: Any, schema: dict[str, Any]) -> Any:
    """The value that a text spells, if the schema wants a value of that type and no text."""
    wanted: Any = schema.get("type")
    types = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    if not isinstance(value, str) or "string" in types:
        return value
    try:
        parsed = _parsed(value) if value else value
    except orjson.JSONDecodeError:
        return value
    fits = any(type(parsed) in _JSON_TYPES.get(name, ()) for name in types if isinstance(name, str))
    return parsed if fits else value


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float | int) and not isinstance(value, bool):
        if abs(value) >= EXACT_INTEGERS:
            return float(value)
        return int(value) if float(value).is_integer() else value
    if isinstance(value, list):
        return [_plain_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _object(value: Any) -> dict[str, Any]:
    """A schema comes from the harness and may be anything."""
    return value if _is_object(value) else {}
