"""The dialect port: pure code between a provider's JSON and our canonical chat.

A dialect opens no socket and keeps no state between calls. Errors have one canonical form, `Problem`, which each
dialect puts into its provider's shape.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import orjson

from polar.types import Delta, Failure, FinishReason, Message, TokenIds, Tool

STREAMING_FIELDS = frozenset({"stream", "stream_options"})
"""How a reply is sent, not what is asked: a harness may ask again without streaming and means the same call."""
_LOOKS_RETRYABLE = re.compile(r"\d*(?:429|50[0234])\d*")


class HistoryItem:
    """One entry of a raw history. Requests of one session share the items they begin with that are the same to the
    byte: in every request that has an item, the same items stand before it."""

    __slots__ = ("_digest", "made", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        """The decoded JSON; not to be changed."""
        self.made: Any = None
        """What the dialect made of it: of this item and those before it, and of nothing else in the request."""
        self._digest = b""

    def digest(self, plain: Callable[[Any], Any] | None = None) -> bytes:
        """`digest_item` of the value, in its plain form where the dialect has one."""
        if not self._digest:
            self._digest = digest_item(plain(self.value) if plain else self.value)
        return self._digest


class RawRequest(msgspec.Struct, frozen=True):
    """A request as it came: its JSON body, and what its address adds to it."""

    data: dict[str, Any]
    action: str = ""
    """The part of the path after the model's name, such as `streamGenerateContent`."""
    query: Mapping[str, str] = {}
    values: list[Any] | None = None
    """The list in `data` that is the history, where its items are known."""
    items: tuple[HistoryItem, ...] = ()
    """One for each of the values."""

    def history(self, values: list[Any]) -> tuple[HistoryItem, ...]:
        """The items of a list that a dialect takes for the history."""
        return self.items if values is self.values else tuple(map(HistoryItem, values))


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a harness asks for, whatever dialect it speaks."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    """What the reply must be an instance of."""
    asked: dict[str, Any] = {}
    """Sampling and thinking as the harness wants them; recorded. The task's sampling is used, except where it says
    that the harness's is."""
    prompt: str | TokenIds | None = None
    """A prompt laid out by the harness itself, instead of messages."""
    items: tuple[bytes, ...] = ()
    """A digest per item of the raw request: the tools, then the history in order."""
    rest: bytes = b""
    """Digest of everything else in it, except how the reply is to be sent. Equal items and an equal rest are the
    same request, sent again."""
    size_bytes: int = 0
    """Of the body it came in, unpacked: how long everything takes that looks at all of it."""
    lone_surrogates: int = 0
    """Halves of surrogate pairs in it that became U+FFFD."""
    image_field: str = ""
    """Where the first image stands in the raw request, if there is one."""
    include_usage: bool = False
    array: bool = False
    """A stream is one JSON array and not a series of events."""


class ReplyHead(msgspec.Struct, frozen=True):
    """What is known of a reply before its first token."""

    reply_id: str
    created: int
    """Unix seconds."""
    model: str
    prompt_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """A whole reply."""

    head: ReplyHead
    message: Message
    deltas: tuple[Delta, ...]
    """The same in the order it was said: text, calls, more text."""
    finish_reason: FinishReason
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens the engine did not compute again."""
    reasoning_tokens: int = 0
    stop_sequence: str = ""
    """The stop text that ended it."""
    captured: bool = True
    """False: nobody sampled it, and there is no call of it (`gateway/calls/final_message.py`)."""


class Problem(Exception):
    """A request that gets an error. `code` is canonical; the dialect knows its provider's words."""

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
        """What failed inside, where the request itself was sound."""


class Overflow(Problem):
    """A prompt that leaves no room for a reply. Harnesses compact when they read it in their provider's words."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        message = f"the prompt has {prompt_tokens} tokens, the model's context {context_tokens}"
        super().__init__(400, "context_length_exceeded", message)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ErrorReply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class BrokenStream(msgspec.Struct, frozen=True):
    """How a stream ends that cannot be finished."""

    last: bytes
    clean: bool
    """Whether the HTTP body then ends as a whole one does, or the connection is cut: whichever makes the dialect's
    harnesses ask again and never take a part for the whole."""


class StreamEncoder(Protocol):
    """The bytes of one streamed reply: `start`, any number of `heartbeat` and `delta`, then `end` or `broken`.

    `end` is the terminal part: once a harness has it, the reply is whole.
    """

    def start(self) -> bytes: ...

    def heartbeat(self) -> bytes: ...

    def delta(self, delta: Delta) -> bytes:
        """May be empty: what the provider sends only as a whole waits for `end`."""
        ...

    def end(self, reply: Reply) -> bytes: ...

    def broken(self, problem: Problem) -> BrokenStream: ...


class Dialect(Protocol):
    name: str
    history_field: str
    """The body's list that grows with a conversation."""

    def parse(self, raw: RawRequest) -> ChatRequest:
        """Raises `Problem` for a request that cannot be served, and nothing else."""
        ...

    def reply(self, request: ChatRequest, reply: Reply) -> bytes: ...

    def encoder(self, request: ChatRequest, head: ReplyHead) -> StreamEncoder: ...

    def error(self, problem: Problem) -> ErrorReply: ...


def too_deep() -> Problem:
    return Problem(400, "invalid_request", "the body is nested too deep")


def digest_item(item: Any) -> bytes:
    """Digest of one raw JSON value, blind to key order only. Raises `Problem` for what cannot be written again."""
    try:
        text = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise too_deep() from error
    return hashlib.blake2b(text, digest_size=16).digest()


def digest_rest(data: dict[str, Any], item_fields: tuple[str, ...]) -> bytes:
    """Digest of what a request holds beside its items. A reply may repeat a part of it, some levels further down,
    and has to be writable then too."""
    left_out = STREAMING_FIELDS | set(item_fields)
    rest = {name: value for name, value in data.items() if name not in left_out}
    return digest_item([[[[[[[[rest]]]]]]]])


def final_text(problem: Problem, text: str) -> str:
    """A part of an error's text. Some harnesses ask again when it has the digits of a retryable status in it, so a
    final one goes without such numbers."""
    return text if problem.retry else _LOOKS_RETRYABLE.sub("N", text)


def retry_headers(problem: Problem) -> dict[str, str]:
    """What the providers' SDKs look at before they ask again."""
    headers = {"x-should-retry": "true" if problem.retry else "false"}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    return headers
