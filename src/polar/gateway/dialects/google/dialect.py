"""Google's generateContent API: `:generateContent`, `:streamGenerateContent` and `:countTokens` of a model.

docs/dialects/google.md lists every field.
"""

from __future__ import annotations

import orjson

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.google.errors import error_body, http_status
from polar.gateway.dialects.google.reply import json_line, reply_json
from polar.gateway.dialects.google.request import read_request
from polar.gateway.dialects.google.stream import GoogleArray, GoogleStream
from polar.gateway.dialects.problems import ErrorReply, Problem, retry_headers
from polar.gateway.dialects.raw_request import RawRequest


class Google:
    name = "google"
    history_field = "contents"

    def parse(self, raw: RawRequest) -> ChatRequest:
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return json_line(reply_json(reply))

    def encoder(self, request: ChatRequest, reply: Reply) -> GoogleStream:
        return GoogleArray(reply) if request.array else GoogleStream(reply)

    def error(self, problem: Problem) -> ErrorReply:
        return ErrorReply(http_status(problem), retry_headers(problem), json_line(error_body(problem)))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": tokens})

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The list of models, or its only entry."""
        entry = {
            "name": f"models/{model}",
            "displayName": model,
            "inputTokenLimit": context_tokens,
            "outputTokenLimit": context_tokens,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
        return orjson.dumps(entry if one else {"models": [entry]})
