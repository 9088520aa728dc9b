"""A request's body: its JSON, unpacked where the harness packed it, and bounded in both forms."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import zstandard

from polar.gateway.dialects.base import ChatRequest, Problem
from polar.gateway.dialects.fields import read_object
from polar.tokens.json_values import ValueCount, count_values, most_possible
from polar.tokens.surrogates import without_lone_surrogates
from polar.types import Message, ToolCall

GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
ZSTD_WINDOW_BYTES = 8 * 2**20
"""What every reader has to grant; a sender does not choose more memory than this or than a body may have."""
MOST_CONTAINERS = 2**16
"""Lists and objects of JSON in one body. The largest requests of real harnesses have some thousands."""
MOST_VALUES = 2**17
"""Of JSON in one body, besides one for each token of the model's context: making them holds up every other
session, for half a microsecond each."""


def too_large() -> Problem:
    return Problem(413, "request_too_large", "the body is larger than this gateway takes")


def too_many_values() -> Problem:
    return Problem(413, "request_too_large", "the body holds more JSON values than this gateway takes")


def unpacked(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """`encoding` is the request's content-encoding, the last one applied last."""
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        body = _unpack(body, name, limit_bytes)
    return body


def read_values(body: bytes, most_values: int) -> dict[str, Any]:
    """An unpacked body as an object of at most so many values."""
    check_count(body, possible_count(body), most_values)
    return read_object(body)


def possible_count(body: bytes) -> ValueCount:
    """An upper bound of what a body holds."""
    size = len(body)
    return ValueCount(size, size) if size <= MOST_CONTAINERS else most_possible(body)


def check_count(body: bytes, possible: ValueCount, most_values: int) -> ValueCount:
    """A bound of what a body holds that is no more than a body may hold: `possible`, or the exact count where that
    is too much. Raises `Problem` where the exact count is too."""
    most = ValueCount(MOST_CONTAINERS, most_values)
    if possible.within(most):
        return possible
    exact = count_values(body, most)
    if not exact.within(most):
        raise too_many_values()
    return exact


def sound_text(body: bytes) -> tuple[bytes, int]:
    """The body with U+FFFD for each half of a surrogate pair, and how many it had."""
    return without_lone_surrogates(body) if b"\\ud" in body or b"\\uD" in body else (body, 0)


def may_hold_lone(body: bytes) -> bool:
    """Whether a text in the body may be JSON that spells a lone surrogate, as arguments of a tool call do."""
    return b"\\\\u" in body


def readable_arguments(request: ChatRequest) -> ChatRequest:
    """The request with U+FFFD for lone surrogates that stand in the JSON text of its tool calls."""
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


def _unpack(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    if encoding == "identity":
        return body
    try:
        if encoding in ("gzip", "x-gzip", "deflate"):
            return _inflate(body, limit_bytes)
        if encoding == "zstd":
            return _unpack_zstd(body, limit_bytes)
    except (zlib.error, zstandard.ZstdError) as error:
        raise Problem(400, "invalid_request", f"the body is not valid {encoding}") from error
    message = f"content-encoding {encoding[:40]!r} is not known here; use gzip, deflate, zstd or none"
    raise Problem(415, "unsupported_encoding", message)


def _inflate(body: bytes, limit_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        unpacked = unpacker.decompress(body, limit_bytes + 1)
    except zlib.error:  # some senders of "deflate" leave the zlib frame out
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        unpacked = unpacker.decompress(body, limit_bytes + 1)
    return _whole(unpacked, limit_bytes, ended=unpacker.eof)


def _unpack_zstd(body: bytes, limit_bytes: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=max(limit_bytes, ZSTD_WINDOW_BYTES))
    with unpacker.stream_reader(body, read_across_frames=True) as reader:
        return _whole(reader.read(limit_bytes + 1), limit_bytes, ended=True)


def _whole(unpacked: bytes, limit_bytes: int, *, ended: bool) -> bytes:
    if len(unpacked) > limit_bytes:
        raise too_large()
    if not ended:
        raise Problem(400, "invalid_request", "the packed body ends too early")
    return unpacked
