"""OpenAI Responses: `POST /v1/responses`, streaming and not, and the count of a request's tokens.

Every field is translated, refused with its name, or ignored: docs/dialects/openai_responses.md says which and why.
Fields nobody has heard of are ignored too, because harnesses grow new ones every month.
"""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects.base import (
    ChatRequest,
    ErrorReply,
    Problem,
    RawRequest,
    Reply,
    ReplyHead,
    digest_item,
    digest_rest,
)
from polar.gateway.dialects.fields import bad, fields, positive
from polar.gateway.dialects.openai_errors import openai_error
from polar.gateway.dialects.openai_responses.messages import input_items, read_conversation
from polar.gateway.dialects.openai_responses.reply import Writer
from polar.gateway.dialects.openai_responses.stream import ResponsesStream
from polar.gateway.dialects.openai_responses.tools import Toolbox

REFUSED = {
    "previous_response_id": "nothing is kept between requests: send the whole input",
    "conversation": "nothing is kept between requests: send the whole input",
    "prompt": "no prompt templates are kept here: send instructions and input",
    "background": "a reply is given while its request is open",
}
"""Fields that change what the model reads or how the reply comes; to ignore them would lie."""
ASKED = ("temperature", "top_p", "reasoning")


class OpenAIResponses:
    name = "openai_responses"
    history_field = "input"

    def parse(self, raw: RawRequest) -> ChatRequest:
        data = raw.data
        for field, why in REFUSED.items():
            if data.get(field):
                raise bad(f"{field} is not supported: {why}", field)
        history = raw.history(input_items(data.get("input")))
        # First, because it also proves that every part can be written as JSON again.
        items = (
            digest_item([data.get("tools"), data.get("instructions")]),
            *(item.digest() for item in history),
        )
        rest = digest_rest(data, ("tools", "instructions", "input"))
        toolbox = Toolbox()
        toolbox.add(data.get("tools"), "tools")
        messages = read_conversation(data.get("instructions"), history, toolbox)
        return ChatRequest(
            messages=messages,
            tools=toolbox.shown() if _may_call(data.get("tool_choice")) else (),
            stream=bool(data.get("stream")),
            max_tokens=positive(data.get("max_output_tokens"), "max_output_tokens"),
            json_schema=_schema(data.get("text")),
            asked={name: data[name] for name in ASKED if data.get(name) is not None},
            items=items,
            rest=rest,
        )

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        return orjson.dumps(Writer(request, reply.head).completed(reply))

    def encoder(self, request: ChatRequest, head: ReplyHead) -> ResponsesStream:
        return ResponsesStream(request, head)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})


def _may_call(choice: Any) -> bool:
    if choice not in (None, "auto", "none"):
        raise bad(
            "tool_choice must be auto or none: a forced call is not sampled from the plain model", "tool_choice"
        )
    return choice != "none"


def _schema(text: Any) -> dict[str, Any] | None:
    """What the reply must be an instance of."""
    wanted = fields(fields(text).get("format"))
    kind: Any = wanted.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise bad("text.format must be text, json_object or json_schema", "text.format.type")
    schema: Any = wanted.get("schema")
    if not isinstance(schema, dict):
        raise bad("text.format.schema must be a JSON schema", "text.format.schema")
    return fields(schema)
