"""Google's generateContent API: `:generateContent`, `:streamGenerateContent` and `:countTokens` of a model.

The pieces: `request.py` reads, `contents.py` and `schema.py` read its parts, `stream.py` and `errors.py` write.
"""

from __future__ import annotations

import orjson

from polar.gateway.dialects.base import (
    ChatRequest,
    ErrorReply,
    Problem,
    RawRequest,
    Reply,
    ReplyHead,
    retry_headers,
)
from polar.gateway.dialects.google.errors import error_body, http_status
from polar.gateway.dialects.google.request import read_request
from polar.gateway.dialects.google.stream import GoogleArray, GoogleStream, response, whole_parts, wire_json


class Google:
    name = "google"
    history_field = "contents"

    def parse(self, raw: RawRequest) -> ChatRequest:
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return wire_json(response(reply.head, whole_parts(reply.deltas, reply.head), reply))

    def encoder(self, request: ChatRequest, head: ReplyHead) -> GoogleStream:
        return GoogleArray(head) if request.array else GoogleStream(head)

    def error(self, problem: Problem) -> ErrorReply:
        return ErrorReply(http_status(problem), retry_headers(problem), wire_json(error_body(problem)))

    def count(self, tokens: int) -> bytes:
        """What `:countTokens` answers."""
        return orjson.dumps({"totalTokens": tokens})

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The listing of the one model, or the model by itself."""
        listed = {
            "name": f"models/{model}",
            "displayName": model,
            "inputTokenLimit": context_tokens,
            "outputTokenLimit": context_tokens,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
        return orjson.dumps(listed if one else {"models": [listed]})
