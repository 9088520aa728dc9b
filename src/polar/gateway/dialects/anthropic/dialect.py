"""Anthropic Messages: `POST /v1/messages`, its token counts and its models.

docs/dialects/anthropic.md lists every field.
"""

from __future__ import annotations

import orjson

from polar.gateway.dialects.anthropic.errors import error_body
from polar.gateway.dialects.anthropic.reply import reply_json
from polar.gateway.dialects.anthropic.request import read_request
from polar.gateway.dialects.anthropic.stream import MessageStream
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.problems import ErrorReply, Problem, retry_headers
from polar.gateway.dialects.raw_request import RawRequest


class Anthropic:
    name = "anthropic"
    history_field = "messages"

    def parse(self, raw: RawRequest) -> ChatRequest:
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return orjson.dumps(reply_json(reply))

    def encoder(self, request: ChatRequest, reply: Reply) -> MessageStream:
        return MessageStream(reply)

    def error(self, problem: Problem) -> ErrorReply:
        body = error_body(problem)
        headers = {"request-id": body["request_id"], **retry_headers(problem)}
        return ErrorReply(problem.status, headers, orjson.dumps(body))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": tokens})

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The list of models, or its only entry."""
        entry = {
            "type": "model",
            "id": model,
            "display_name": model,
            "created_at": "1970-01-01T00:00:00Z",  # the provider sends this for an unknown date
            "lifecycle": "active",
            "max_input_tokens": context_tokens,
            "max_tokens": context_tokens,
        }
        listing = {"data": [entry], "has_more": False, "first_id": model, "last_id": model}
        return orjson.dumps(entry if one else listing)
