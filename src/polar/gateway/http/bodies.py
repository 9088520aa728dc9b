"""A request's body, from bytes to JSON: decompressed, bounded, and read once.

A harness sends its whole history with every call, and a body mostly begins with the bytes of the one before. The
items of the history that two bodies share are taken over from the earlier one, and only the rest is decoded, with
a placeholder in their place. This is exact: an item is taken over only if all bytes up to its end are equal, and
the placeholder must come out as the first item of the history (docs/design/recent-bodies.md).
"""

from __future__ import annotations

import re
import secrets
import zlib
from bisect import bisect_left
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec
import zstandard

from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import HistoryItem, RawRequest, read_object
from polar.tokens.json_values import ValueCount, count_values, most_possible
from polar.tokens.surrogates import without_lone_surrogates
from polar.types import Message, ToolCall

GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
ZSTD_WINDOW_BYTES = 8 * 2**20
"""What every zstd reader must allow. A sender may not claim more memory than this or than a body may have."""
MOST_CONTAINERS = 2**16
"""JSON lists and objects in one body. The largest requests of real harnesses have some thousands."""
MOST_VALUES = 2**17
"""JSON values in one body, besides one for each token of the context. Creating one holds the interpreter for half
a microsecond, for all sessions."""

MOST_BODIES = 8
"""Kept per session: conversations that take turns, such as sub-agents."""
MOST_BYTES = 4 * 2**20
"""Of all bodies kept for a session. Comparing them on the event loop takes a millisecond at most."""
MOST_ITEMS = 2**13
"""Of a history whose body is kept."""
MOST_OPENINGS = 16
"""Lists under the history's name that are tried as the history, wherever they stand in a body."""

_BETWEEN = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_RAW_ITEMS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def too_large() -> Problem:
    return Problem(413, "request_too_large", "the body is larger than this gateway accepts")


def too_many_values() -> Problem:
    return Problem(413, "request_too_large", "the body holds more JSON values than this gateway accepts")


# Bytes


def decompressed(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """`encoding`: the content-encoding header, whose last entry was applied last."""
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        body = _decompress(body, name, limit_bytes)
    return body


def _decompress(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    if encoding == "identity":
        return body
    try:
        if encoding in ("gzip", "x-gzip", "deflate"):
            return _inflate(body, limit_bytes)
        if encoding == "zstd":
            return _decompress_zstd(body, limit_bytes)
    except (zlib.error, zstandard.ZstdError) as error:
        raise Problem(400, "invalid_request", f"the body is not valid {encoding}") from error
    message = f"content-encoding {encoding[:40]!r} is not supported; use gzip, deflate, zstd or none"
    raise Problem(415, "unsupported_encoding", message)


def _inflate(body: bytes, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error:  # some senders of "deflate" leave the zlib frame out
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        plain = inflater.decompress(body, limit_bytes + 1)
    return _complete(plain, limit_bytes, ended=inflater.eof)


def _decompress_zstd(body: bytes, limit_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit_bytes, ZSTD_WINDOW_BYTES))
    with decompressor.stream_reader(body, read_across_frames=True) as reader:
        return _complete(reader.read(limit_bytes + 1), limit_bytes, ended=True)


def _complete(plain: bytes, limit_bytes: int, *, ended: bool) -> bytes:
    if len(plain) > limit_bytes:
        raise too_large()
    if not ended:
        raise Problem(400, "invalid_request", "the compressed body ends too early")
    return plain


# Lone surrogates


def sound_text(body: bytes) -> tuple[bytes, int]:
    """The body with U+FFFD for each lone surrogate, and how many it had."""
    return without_lone_surrogates(body) if b"\\ud" in body or b"\\uD" in body else (body, 0)


def may_hold_lone(body: bytes) -> bool:
    """Whether a string in the body may itself be JSON with a lone surrogate, as tool-call arguments are."""
    return b"\\\\u" in body


def readable_arguments(request: ChatRequest) -> ChatRequest:
    """The request with U+FFFD for lone surrogates in the JSON arguments of its tool calls."""
    messages, replaced = list[Message](), 0
    for message in request.messages:
        calls = list[ToolCall]()
        for call in message.tool_calls:
            arguments, found = without_lone_surrogates(call.arguments.encode())
            replaced += found
            calls.append(msgspec.structs.replace(call, arguments=arguments.decode()) if found else call)
        messages.append(msgspec.structs.replace(message, tool_calls=tuple(calls)) if calls else message)
    if not replaced:
        return request
    lone = request.lone_surrogates + replaced
    return msgspec.structs.replace(request, messages=tuple(messages), lone_surrogates=lone)


# JSON


def read_values(body: bytes, most_values: int) -> dict[str, Any]:
    """A body as an object of at most so many values."""
    check_count(body, possible_count(body), most_values)
    return read_object(body)


def possible_count(body: bytes) -> ValueCount:
    """An upper bound of the values in a body."""
    size = len(body)
    return ValueCount(size, size) if size <= MOST_CONTAINERS else most_possible(body)


def check_count(body: bytes, possible: ValueCount, most_values: int) -> ValueCount:
    """`possible` if it is within what a body may hold, else the exact count. Raises `Problem` if that is over,
    too."""
    most = ValueCount(MOST_CONTAINERS, most_values)
    if possible.within(most):
        return possible
    exact = count_values(body, most)
    if not exact.within(most):
        raise too_many_values()
    return exact


class KnownBody(NamedTuple):
    """A body that was read, and where the items of its history stand in it."""

    body: bytes
    start: int
    """Of the first item."""
    ends: list[int]
    """Of each item."""
    items: tuple[HistoryItem, ...]
    holds: ValueCount
    """An upper bound."""

    def shared_items(self, body: bytes) -> int:
        """How many items another body shares: equal to the byte, with everything before them."""
        known = memoryview(self.body)
        if body.startswith(known[: self.ends[-1]]):
            return len(self.ends)
        return bisect_left(self.ends, True, key=lambda end: not body.startswith(known[:end]))


class SharedHistory(NamedTuple):
    """What a body has in common with a known one."""

    known: KnownBody
    items: int
    """At least one."""

    @property
    def end(self) -> int:
        return self.known.ends[self.items - 1]


class RecentBodies:
    """The latest bodies of one session in one dialect. Thread-safe: what is kept is replaced as a whole."""

    def __init__(self, history_field: str) -> None:
        self._field = history_field
        self._placeholder = secrets.token_hex(16)
        """Random, so that no body contains it."""
        self._quoted = f'"{self._placeholder}"'.encode()
        self._opening = re.compile(rb'"%s"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*' % history_field.encode())
        self._kept: tuple[KnownBody, ...] = ()
        """The latest first."""

    @property
    def size_bytes(self) -> int:
        return sum(len(known.body) for known in self._kept)

    def shared(self, body: bytes) -> SharedHistory | None:
        found = [SharedHistory(known, known.shared_items(body)) for known in self._kept]
        longest = max(found, key=lambda shared: shared.items, default=None)
        return longest if longest and longest.items else None

    def read(self, body: bytes, most_values: int, shared: SharedHistory | None) -> RawRequest:
        """`shared`: the result of `shared(body)`. Raises `Problem`."""
        found = self._read_rest(body, most_values, shared) if shared else None
        return found or self._read_whole(body, most_values)

    def _read_whole(self, body: bytes, most_values: int) -> RawRequest:
        holds = check_count(body, possible_count(body), most_values)
        data = read_object(body)
        values: Any = data.get(self._field) if self._field else None
        if not isinstance(values, list) or not values:
            return RawRequest(data)
        items = tuple(map(HistoryItem, cast("list[Any]", values)))
        if len(items) <= MOST_ITEMS and len(body) <= MOST_BYTES:
            start, ends = self._find_items(body, len(items))
            if ends:
                self._keep(KnownBody(body, start, ends, items, holds), None)
        return RawRequest(data, values=cast("list[Any]", values), items=items)

    def _read_rest(self, body: bytes, most_values: int, shared: SharedHistory) -> RawRequest | None:
        """Decodes what follows the shared items. None if that is not the rest of their list."""
        known, start = shared.known, shared.known.start
        rest = b"".join((memoryview(body)[:start], self._quoted, memoryview(body)[shared.end :]))
        holds = check_count(body, known.holds.plus(most_possible(rest)), most_values)
        try:
            data = read_object(rest)
        except Problem:
            return None
        values: Any = data.get(self._field)
        if not isinstance(values, list) or not values or values[0] != self._placeholder:
            return None
        old, new = known.items[: shared.items], cast("list[Any]", values)[1:]
        values[:1] = [item.value for item in old]
        items = (*old, *map(HistoryItem, new))
        if len(items) <= MOST_ITEMS and len(body) <= MOST_BYTES:
            _, new_ends = self._find_items(rest, len(new) + 1, start)
            moved = shared.end - start - len(self._quoted)
            ends = [*known.ends[: shared.items], *(end + moved for end in new_ends[1:])]
            if new_ends:
                self._keep(KnownBody(body, start, ends, items, holds), shared)
        return RawRequest(data, values=cast("list[Any]", values), items=items)

    def _find_items(self, text: bytes, count: int, start: int | None = None) -> tuple[int, list[int]]:
        """Where the first item of the history starts and where each one ends; an empty list if that is unclear."""
        try:
            raw = _RAW_ITEMS.decode(_RAW_FIELDS.decode(text)[self._field])
        except (msgspec.MsgspecError, KeyError, RecursionError):
            return -1, []
        if len(raw) != count:
            return -1, []
        texts = list(map(bytes, raw))
        openings = islice(self._opening.finditer(text), MOST_OPENINGS)
        for first in [start] if start is not None else [opening.end() for opening in openings]:
            if ends := _ends(text, first, texts):
                return first, ends
        return -1, []

    def _keep(self, body: KnownBody, shared: SharedHistory | None) -> None:
        """Replaces the body it continues, unless it shares less than half of it: a history that was cut may go on
        from both states."""
        replaced = shared.known if shared and 2 * shared.items >= len(shared.known.items) else None
        kept, room_bytes = [body], MOST_BYTES - len(body.body)
        for known in self._kept:
            room_bytes -= len(known.body) if known is not replaced else 0
            if known is not replaced and room_bytes >= 0:
                kept.append(known)
        self._kept = tuple(kept[:MOST_BODIES])


def _ends(text: bytes, start: int, items: list[bytes]) -> list[int]:
    """Where each item ends, if the first stands at `start`; else an empty list."""
    ends = list[int]()
    for item in items:
        if not text.startswith(item, start):
            return []
        ends.append(start + len(item))
        gap = _BETWEEN.match(text, ends[-1])
        start = gap.end() if gap else -1
    return ends
