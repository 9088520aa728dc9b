"""The dialect port: pure code between a provider's bytes and our canonical chat.

A dialect opens no socket and keeps no state between calls. Errors have one canonical form, `Problem`, which each
dialect puts into its provider's shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import orjson

from polar.types import FinishReason, Message, Tool


class ChatRequest(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    stream: bool
    max_tokens: int | None
    asked_sampling: dict[str, Any]
    """What the harness asked for; recorded, and overridden by the task's."""
    items: tuple[bytes, ...]
    """A digest per item of the raw request: the tools, then the history in order."""
    include_usage: bool = False


class Reply(msgspec.Struct, frozen=True):
    reply_id: str
    created: int
    model: str
    message: Message
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Problem(Exception):
    """A request that gets an error. `code` is canonical; the dialect knows its provider's words."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry


class ErrorReply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class StreamEncoder(Protocol):
    """Events of one streamed reply, in order: `start`, any number of `heartbeat`, then `body` and `end`."""

    def start(self) -> bytes: ...

    def heartbeat(self) -> bytes: ...

    def body(self, reply: Reply) -> Iterator[bytes]: ...

    def end(self, reply: Reply) -> bytes:
        """The terminal event: once a harness has it, the reply is whole."""
        ...

    def error(self, problem: Problem) -> bytes: ...


class Dialect(Protocol):
    name: str

    def parse(self, body: bytes) -> ChatRequest:
        """Raises `Problem` for a request that cannot be served."""
        ...

    def reply(self, reply: Reply) -> bytes: ...

    def encoder(self, request: ChatRequest, reply_id: str, model: str, created: int) -> StreamEncoder: ...

    def error(self, problem: Problem) -> ErrorReply: ...


def digest_item(item: Any) -> bytes:
    """Digest of one raw JSON value, blind to key order only. Raises `Problem` for what cannot be written again."""
    try:
        text = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise Problem(400, "invalid_request", "the body is nested too deep") from error
    return hashlib.blake2b(text, digest_size=16).digest()
