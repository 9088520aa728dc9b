"""The dialect port: pure code between a provider's JSON and our canonical chat.

A dialect opens no socket and keeps no state between calls. It reads a `RawRequest` into a `ChatRequest` and writes
a `Reply` or a `Problem` in its provider's format.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal, Protocol

import msgspec

from polar.gateway.dialects.problems import ErrorReply, Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, FinishReason, Message, TokenIds, Tool


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in canonical form, independent of its dialect."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    """The schema that the reply must match."""
    asked: dict[str, Any] = {}
    """Sampling and thinking parameters that the harness sent. They are recorded; only those that the task names in
    `sampling.follow_harness` are used."""
    prompt: str | TokenIds | None = None
    """A prompt that the harness has rendered itself; there are no messages then."""
    items: tuple[bytes, ...] = ()
    """A digest per item of the raw request: the tools, then the history in order."""
    rest: bytes = b""
    """Digest of all other fields except `STREAMING_FIELDS`. Requests with equal items and an equal rest are
    retries of each other."""
    size_bytes: int = 0
    """Size of the decompressed body."""
    lone_surrogates: int = 0
    """Number of unpaired surrogates in it that were replaced by U+FFFD."""
    image_field: str = ""
    """Path of the first image in the raw request, if there is one."""
    include_usage: bool = False
    array: bool = False
    """Stream one JSON array instead of server-sent events."""


class Reply(msgspec.Struct, frozen=True):
    """A reply. The first four fields are known before its first token, and a stream begins with them."""

    reply_id: str
    created: int
    """Unix seconds."""
    model: str
    prompt_tokens: int
    message: Message = Message(role="assistant")
    deltas: tuple[Delta, ...] = ()
    """The message in the order it was sampled: text, calls, more text."""
    finish_reason: FinishReason = "aborted"
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the engine took from its cache."""
    reasoning_tokens: int = 0
    stop_sequence: str = ""
    """The stop text that ended it."""
    captured: bool = True
    """False for a final message that the gateway writes itself; no call is stored for it."""


class BrokenStream(msgspec.Struct, frozen=True):
    """How a stream ends that cannot be completed."""

    last: bytes
    clean: bool
    """Whether the HTTP body ends normally or the connection is cut: whichever makes the dialect's harnesses retry
    without taking a partial reply for a complete one."""


class StreamEncoder(Protocol):
    """The bytes of one streamed reply: `start`, any number of `heartbeat` and `delta`, then `end` or `broken`.

    A harness that has received `end` has the complete reply.
    """

    def start(self) -> bytes: ...

    def heartbeat(self) -> bytes: ...

    def delta(self, delta: Delta) -> bytes:
        """May be empty."""
        ...

    def end(self, reply: Reply) -> bytes: ...

    def broken(self, problem: Problem) -> BrokenStream: ...


class Dialect(Protocol):
    name: str
    history_field: str
    """Name of the list in the body that grows with a conversation."""

    def parse(self, raw: RawRequest) -> ChatRequest:
        """Raises only `Problem`, for a request that cannot be served."""
        ...

    def reply(self, request: ChatRequest, reply: Reply) -> bytes: ...

    def encoder(self, request: ChatRequest, reply: Reply) -> StreamEncoder:
        """`reply`: as far as it is known before its first token."""
        ...

    def error(self, problem: Problem) -> ErrorReply: ...


def delta_kind(delta: Delta) -> Literal["tool_call", "reasoning", "content", ""]:
    """Which field of a delta is set; none in an empty one."""
    if delta.tool_call is not None:
        return "tool_call"
    return "reasoning" if delta.reasoning else "content" if delta.content else ""


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas of a whole reply: neighbouring texts of one kind become one, each call stays its own."""
    whole: list[Delta] = []
    for kind, run in groupby(filter(delta_kind, deltas), delta_kind):
        if kind == "reasoning":
            whole.append(Delta(reasoning="".join(delta.reasoning for delta in run)))
        elif kind == "content":
            whole.append(Delta(content="".join(delta.content for delta in run)))
        else:
            whole += run
    return whole
