"""OpenAI Responses: `POST /v1/responses` and its token counts.

docs/dialects/openai_responses.md lists every field.
"""

from __future__ import annotations

import orjson

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat.errors import openai_error
from polar.gateway.dialects.openai_responses.reply import OutputWriter
from polar.gateway.dialects.openai_responses.request import read_request
from polar.gateway.dialects.openai_responses.stream import ResponsesStream
from polar.gateway.dialects.problems import ErrorReply, Problem
from polar.gateway.dialects.raw_request import RawRequest


class OpenAIResponses:
    name = "openai_responses"
    history_field = "input"

    def parse(self, raw: RawRequest) -> ChatRequest:
        return read_request(raw)

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return orjson.dumps(OutputWriter(request, reply).completed(reply))

    def encoder(self, request: ChatRequest, reply: Reply) -> ResponsesStream:
        return ResponsesStream(request, reply)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})
