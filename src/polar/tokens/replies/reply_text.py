"""The text of a growing reply to content and tool calls, and whole replies from their deltas.

A tool call is a Hermes-style block: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A block that
cannot be read stays in the content word for word, so that the harness and the trainer see what the model wrote.

White space around calls is layout: after a call it counts only if more text follows, and at the end of a reply
with calls it is dropped. `verbatim` keeps the rest as sampled; otherwise white space at both ends of the reply is
layout too. This rule can be decided while the reply is being sampled.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import orjson

from polar.tokens.base import ReplyReader
from polar.types import Delta, Message, TokenIds, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
Utf8Decoder = codecs.getincrementaldecoder("utf-8")
"""An incomplete character waits for its rest."""
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def message_of(deltas: Iterable[Delta]) -> Message:
    """All deltas of a reply, joined."""
    parts = list(deltas)
    return Message(
        role="assistant",
        content="".join(part.content for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        tool_calls=tuple(part.tool_call for part in parts if part.tool_call is not None),
    )


def deltas_of(message: Message) -> list[Delta]:
    """A whole message as deltas."""
    deltas = [Delta(reasoning=message.reasoning)] if message.reasoning else []
    deltas += [Delta(content=message.content)] if message.content else []
    return [*deltas, *(Delta(tool_call=call) for call in message.tool_calls)]


def read_whole(reader: ReplyReader, ids: TokenIds) -> Message:
    return message_of([*reader.feed(ids), *reader.finish()])


def parse_tool_calls(text: str) -> Message:
    """A message from the whole text of a reply."""
    tags = TextTags()
    return message_of([*tags.feed(text), *tags.finish()])


class TrimmedText:
    """Text without white space at its ends: what may be the end is held back until more text comes."""

    def __init__(self) -> None:
        self._started = False
        """Whether there was anything but white space."""
        self._space: list[str] = []

    def feed(self, text: str, *, keep_leading: bool = False) -> str:
        """The text that has become certain. `keep_leading`: with white space before the first text."""
        kept = text.rstrip()
        if not kept:
            self._space.append(text)
            return ""
        whole = "".join([*self._space, kept])
        self._space = [text[len(kept) :]]
        certain = whole if self._started or keep_leading else whole.lstrip()
        self._started = True
        return certain

    def rest(self) -> str:
        """The white space at the end."""
        return "".join(self._space)


class ReplyBody:
    """The visible part of a reply. The caller finds the tags and opens and closes the blocks; all other text, also
    inside a block, goes to `text`."""

    def __init__(self, *, verbatim: bool, calls: bool = True) -> None:
        """`calls`: whether blocks are tool calls; otherwise they are content."""
        self._verbatim = verbatim
        self._calls = calls
        self._deltas: list[Delta] = []
        self._trimmed = TrimmedText()
        self._has_calls = False
        self._block: list[str] | None = None

    @property
    def in_block(self) -> bool:
        return self._block is not None

    def take(self) -> Sequence[Delta]:
        """The deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def text(self, text: str) -> None:
        if self._block is not None:
            self._block.append(text)
        elif text:
            self._add(self._trimmed.feed(text, keep_leading=self._verbatim and not self._has_calls))

    def open_block(self) -> None:
        self._block = []

    def close_block(self, tag: str = CLOSE) -> None:
        block, self._block = "".join(self._block or ()), None
        call = read_call(block) if self._calls else None
        if call is None:
            self.text(f"{OPEN}{block}{tag}")
        else:
            self._has_calls = True
            self._deltas.append(Delta(tool_call=call))

    def finish(self) -> None:
        """A last block may lack its closing tag if its JSON is complete."""
        if self.in_block:
            self.close_block(tag="")
        if self._verbatim and not self._has_calls:
            self._add(self._trimmed.rest())

    def _add(self, text: str) -> None:
        if text:
            self._deltas.append(Delta(content=text))


class TextTags:
    """Finds the tags of tool calls in text that arrives in pieces."""

    def __init__(self, *, calls: bool = True) -> None:
        self._body = ReplyBody(verbatim=True, calls=calls)
        self._held = ""
        """The end of the text, if it may begin the next tag."""

    def feed(self, text: str) -> Sequence[Delta]:
        text = self._held + text
        while self._tag in text:
            before, _, text = text.partition(self._tag)
            self._body.text(before)
            self._body.close_block() if self._body.in_block else self._body.open_block()
        certain = len(text) - overlap(text, self._tag)
        self._body.text(text[:certain])
        self._held = text[certain:]
        return self._body.take()

    def finish(self) -> Sequence[Delta]:
        self._body.text(self._held)
        self._held = ""
        self._body.finish()
        return self._body.take()

    @property
    def _tag(self) -> str:
        return CLOSE if self._body.in_block else OPEN


class TextTagReader:
    """Replies of a model without reasoning whose tags are text, however the tokens split them. Control tokens are
    spelled out, except for a stop id at the end."""

    reasoning_tokens = 0

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop_ids: Sequence[int], *, calls: bool = True
    ) -> None:
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids
        self._held_stop: int | None = None
        """A stop id that may be the end."""
        self._decoder = Utf8Decoder("replace")
        self._tags = TextTags(calls=calls)

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        if not ids:
            return ()
        known = [*ids] if self._held_stop is None else [self._held_stop, *ids]
        self._held_stop = known.pop() if known[-1] in self._stop_ids else None
        return self._tags.feed(self._decoder.decode(b"".join(map(self._token_bytes, known))))

    def finish(self) -> Sequence[Delta]:
        return [*self._tags.feed(self._decoder.decode(b"", final=True)), *self._tags.finish()]


def overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may begin `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)


def read_call(block: str) -> ToolCall | None:
    """The call between the two tags; None if it cannot be read."""
    try:
        return _read_call(block.strip())
    except (ValueError, RecursionError):
        return None


def _read_call(body: str) -> ToolCall | None:
    fields = _STRICT.decode(body)
    if not _is_object(fields):
        return None
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not is_text(name):
        return None
    if isinstance(arguments, str):  # some models quote the object
        spelled = arguments if is_text(arguments) and _is_object(_STRICT.decode(arguments)) else ""
    else:
        spelled = _spelling(body, arguments) if _is_object(arguments) else ""
    return ToolCall(name=name, arguments=spelled) if spelled and _can_be_sent(spelled) else None


def _can_be_sent(arguments: str) -> bool:
    """Whether a dialect that sends arguments as an object can encode them: not nested too deep, no lone surrogate,
    no infinite number."""
    try:
        orjson.dumps(orjson.loads(arguments))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return False
    return True


def is_text(name: str) -> bool:
    """Not empty and without lone surrogates, which JSON can spell and UTF-8 cannot encode."""
    return bool(name) and not any("\ud800" <= char <= "\udfff" for char in name)


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Built once: building a decoder takes longer than reading a call with it.
_STRICT, _LENIENT = json.JSONDecoder(parse_constant=_refuse), json.JSONDecoder()


def _spelling(body: str, arguments: dict[str, Any]) -> str:
    """The arguments as the model spelled them, which encoding them again would not reproduce."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = _LENIENT.raw_decode(body, match.end())
        except ValueError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments)
