"""The dialect port: pure code between a provider's JSON and our canonical chat.

A dialect opens no socket and keeps no state between calls. Errors have one canonical form, `Problem`, which each
dialect writes in its provider's format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Literal, Protocol

import msgspec
import orjson

from polar.types import Delta, Failure, FinishReason, Message, TokenIds, Tool

STREAMING_FIELDS = frozenset({"stream", "stream_options"})
"""Not part of a request's identity: a retry without streaming is the same call."""
_LOOKS_RETRYABLE = re.compile(r"\d*(?:429|50[0234])\d*")


class HistoryItem:
    """One entry of a raw history. Requests of one session share the items of a byte-identical beginning: every
    request that contains an item has the same items before it."""

    __slots__ = ("_digest", "parsed", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        """The decoded JSON. Do not modify it: requests share it."""
        self.parsed: Any = None
        """The dialect's result for this item. It depends on this item and those before it, on nothing else."""
        self._digest = b""

    def digest(self, plain: Callable[[Any], Any] | None = None) -> bytes:
        """`digest_item` of the value. `plain` removes what the dialect does not count as a difference."""
        if not self._digest:
            self._digest = digest_item(plain(self.value) if plain else self.value)
        return self._digest


class RawRequest(msgspec.Struct, frozen=True):
    """A request as received: its JSON body, and what its URL adds."""

    data: dict[str, Any]
    action: str = ""
    """What the path asks for, such as `streamGenerateContent`."""
    query: Mapping[str, str] = {}
    values: list[Any] | None = None
    """The list in `data` that is the history, if the reader of the body has made `items` of it."""
    items: tuple[HistoryItem, ...] = ()
    """One per entry of `values`."""

    def history(self, values: list[Any]) -> tuple[HistoryItem, ...]:
        """The items of the list that holds the history."""
        return self.items if values is self.values else tuple(map(HistoryItem, values))


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


class Problem(Exception):
    """The error that answers a request. `code` is canonical; each dialect translates it for its provider."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.failure: Failure | None = None
        """The internal failure behind it, if the request was valid."""


class Overflow(Problem):
    """A prompt that leaves no room for a reply. Harnesses compact when they read their provider's text for it."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        message = f"the prompt has {prompt_tokens} tokens, the model's context has {context_tokens}"
        super().__init__(400, "context_length_exceeded", message)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ErrorReply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


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


def too_deep() -> Problem:
    return Problem(400, "invalid_request", "the body is nested too deeply")


def digest_item(item: Any) -> bytes:
    """Digest of one raw JSON value that ignores the order of keys. Raises `Problem` if it cannot be serialised."""
    try:
        text = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise too_deep() from error
    return hashlib.blake2b(text, digest_size=16).digest()


def digest_rest(data: dict[str, Any], item_fields: tuple[str, ...]) -> bytes:
    """Digest of all fields except the items and `STREAMING_FIELDS`."""
    left_out = STREAMING_FIELDS | set(item_fields)
    rest = {name: value for name, value in data.items() if name not in left_out}
    # A reply may repeat a part of it some levels deeper, and must still be serialisable.
    return digest_item([[[[[[[[rest]]]]]]]])


def final_text(problem: Problem, text: str) -> str:
    """Text of an error. Some harnesses retry when it contains the digits of a retryable status, so a final error
    has such numbers replaced."""
    return text if problem.retry else _LOOKS_RETRYABLE.sub("N", text)


def retry_headers(problem: Problem) -> dict[str, str]:
    """The headers that the providers' SDKs obey before they retry."""
    headers = {"x-should-retry": "true" if problem.retry else "false"}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    return headers


def data_event(payload: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_event(payload: dict[str, Any]) -> bytes:
    """A server-sent event named by its `type`."""
    return b"event: " + str(payload["type"]).encode() + b"\n" + data_event(payload)


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
