"""Anthropic Messages: `POST /v1/messages`, its token counts and its models.

Reading a request stands in `request.py`, writing a reply in `reply.py`. Which field is
translated, ignored or refused is listed in docs/dialects/anthropic.md.
"""

from __future__ import annotations

import re
import secrets
import string
from typing import Any

import orjson

from polar.gateway.dialects.anthropic.reply import MessageStream, message_bytes
from polar.gateway.dialects.anthropic.request import THREAD_REFUSED, read_request
from polar.gateway.dialects.base import (
    ChatRequest,
    ErrorReply,
    Overflow,
    Problem,
    RawRequest,
    Reply,
    ReplyHead,
    final_text,
    retry_headers,
)

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Anthropic:
    name = "anthropic"
    history_field = "messages"

    def parse(self, raw: RawRequest) -> ChatRequest:
        """With the action `countTokens` what only a sample needs may be missing."""
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return message_bytes(reply)

    def encoder(self, request: ChatRequest, head: ReplyHead) -> MessageStream:
        return MessageStream(head, error_body)

    def error(self, problem: Problem) -> ErrorReply:
        body = error_body(problem)
        headers = {"request-id": body["request_id"], **retry_headers(problem)}
        return ErrorReply(problem.status, headers, orjson.dumps(body))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": tokens})

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The list of models, or the single one that is in it."""
        entry = {
            "type": "model",
            "id": model,
            "display_name": model,
            "created_at": "1970-01-01T00:00:00Z",  # the provider's own word for a date that is not known
            "lifecycle": "active",
            "max_input_tokens": context_tokens,
            "max_tokens": context_tokens,
        }
        listing = {"data": [entry], "has_more": False, "first_id": model, "last_id": model}
        return orjson.dumps(entry if one else listing)


def error_body(problem: Problem) -> dict[str, Any]:
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    error: dict[str, Any] = {"type": _ERROR_TYPES.get(problem.status, other), "message": _wording(problem)}
    if problem.code == THREAD_REFUSED:
        error["details"] = {"error_code": problem.code}
    return {"type": "error", "error": error, "request_id": _request_id()}


def _wording(problem: Problem) -> str:
    if isinstance(problem, Overflow):
        # A prompt as long as the context is one token too long: it leaves no room for a reply.
        maximum = min(problem.context_tokens, problem.prompt_tokens - 1)
        return f"prompt is too long: {problem.prompt_tokens} tokens > {maximum} maximum"
    message = final_text(problem, problem.message)
    if not problem.param or problem.param in problem.message:
        return message
    # Harnesses search the text for the digits of a status they retry: an index is left out.
    field = re.sub(r"\d", "", problem.param)
    return f"{field}: {message}"


def _request_id() -> str:
    """Of letters only: it is part of the text that harnesses search."""
    return "req_" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(24))
