"""A Responses request: its fields are translated, refused by name, or ignored.

Unknown fields are ignored, because harnesses add new ones every month.
"""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.openai_chat.request import format_schema
from polar.gateway.dialects.openai_responses.messages import ResponsesHistory
from polar.gateway.dialects.openai_responses.tools import Toolbox
from polar.gateway.dialects.raw_request import RawRequest, digest_item, digest_rest

REFUSED = {
    "previous_response_id": "nothing is stored between requests: send the whole input",
    "conversation": "nothing is stored between requests: send the whole input",
    "prompt": "prompt templates are not stored: send instructions and input",
    "background": "the reply is sent while the request is open",
}
_SAMPLING_FIELDS = ("temperature", "top_p", "reasoning")


def read_request(raw: RawRequest) -> ChatRequest:
    data = raw.data
    read.refuse_fields(data, REFUSED)
    history = raw.history(_input_items(data.get("input")))
    # First, because it also proves that every part can be serialised again.
    head = digest_item([data.get("tools"), data.get("instructions")])
    items = (head, *(item.digest() for item in history))
    rest = digest_rest(data, ("tools", "instructions", "input"))
    toolbox = Toolbox()
    toolbox.add(data.get("tools"), "tools")
    messages = ResponsesHistory(data.get("instructions"), toolbox).read(history)
    return ChatRequest(
        messages=messages,
        tools=toolbox.shown() if read.calls_allowed(data.get("tool_choice")) else (),
        stream=bool(data.get("stream")),
        max_tokens=read.positive(data.get("max_output_tokens"), "max_output_tokens"),
        json_schema=_json_schema(data.get("text")),
        asked={name: data[name] for name in _SAMPLING_FIELDS if data.get(name) is not None},
        items=items,
        rest=rest,
    )


def _input_items(given: Any) -> list[Any]:
    """A string counts as one message of the user."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found = read.items(given, "input")
    if not found:
        raise read.bad("input must be a string or a non-empty list", "input")
    return found


def _json_schema(text: Any) -> dict[str, Any] | None:
    wanted = read.fields(read.fields(text).get("format"))
    kind, schema = wanted.get("type", "text"), wanted.get("schema")
    return format_schema(kind, schema, "text.format.type", "text.format.schema")
