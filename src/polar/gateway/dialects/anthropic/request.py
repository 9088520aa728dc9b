"""An Anthropic request: its fields are translated, refused by name, or ignored."""

from __future__ import annotations

from typing import Any, cast

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.anthropic.errors import THREAD_REFUSED
from polar.gateway.dialects.anthropic.messages import AnthropicHistory
from polar.gateway.dialects.anthropic.tools import offered_tools
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest, digest_item, digest_rest

COUNT_ACTION = "countTokens"
"""Action of a request that only counts its tokens. Fields that only sampling needs may be missing then."""

REFUSED = {
    "container": "Polar runs nothing on the provider's side",
    "mcp_servers": "Polar runs nothing on the provider's side",
    "compaction": "a summary is not a sample of the conversation; ask for it in a message",
}


def read_request(raw: RawRequest) -> ChatRequest:
    data = raw.data
    history = raw.history(read.items(data.get("messages"), "messages"))
    # First, because it also proves that every part can be serialised again.
    head = digest_item(unmarked([data.get("tools"), data.get("system")]))
    items = (head, *(item.digest(unmarked) for item in history))
    rest = digest_rest(data, ("tools", "system", "messages"))
    if data.get("thread"):
        message = "thread is not supported: send the whole history with each request"
        raise Problem(400, THREAD_REFUSED, message, param="thread")
    read.refuse_fields(data, REFUSED)
    if not history:
        raise read.bad("messages must be a non-empty list", "messages")
    counting = raw.action == COUNT_ACTION
    if read.fields(history[-1].value).get("role") == "assistant" and not counting:
        raise read.bad("messages must not end with the assistant: a turn is always sampled as a whole", "messages")
    conversation = AnthropicHistory(data.get("system"), history)
    return ChatRequest(
        messages=tuple(conversation.messages),
        tools=offered_tools(data.get("tools"), data.get("tool_choice"), conversation.changes),
        stream=bool(data.get("stream")),
        max_tokens=_max_tokens(data.get("max_tokens"), counting=counting),
        stop=read.stop_texts(data.get("stop_sequences"), "stop_sequences"),
        json_schema=_json_schema(data),
        asked=_sampling(data),
        items=items,
        rest=rest,
    )


def unmarked(value: Any) -> Any:
    """A raw value without `cache_control`, which harnesses move with every turn. A text with that mark has to be a
    block and is often a plain string without it, so a single text block becomes a string."""
    if isinstance(value, list):
        return [unmarked(entry) for entry in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    plain = {name: unmarked(entry) for name, entry in read.fields(value).items() if name != "cache_control"}
    match plain.get("content"):
        case [{"type": "text", "text": str(text), **others}] if not others:
            return {**plain, "content": text}
        case _:
            return plain


def _max_tokens(value: Any, *, counting: bool) -> int | None:
    if value is None and not counting:
        raise read.bad("max_tokens is required", "max_tokens")
    return read.positive(value, "max_tokens")


def _json_schema(data: dict[str, Any]) -> dict[str, Any] | None:
    """`output_format` is the older name of `output_config.format`."""
    where = "output_config.format"
    wanted = read.fields(data.get("output_config")).get("format")
    if wanted is None:
        where, wanted = "output_format", data.get("output_format")
    if wanted is None:
        return None
    schema = read.fields(wanted).get("schema")
    if read.fields(wanted).get("type") != "json_schema" or not isinstance(schema, dict):
        raise read.bad(f"{where} must be of type json_schema, with a schema", where)
    return read.fields(schema)


def _sampling(data: dict[str, Any]) -> dict[str, Any]:
    numbers = ("temperature", "top_p", "top_k")
    asked: dict[str, Any] = {n: read.number(data[n], n, least=0) for n in numbers if data.get(n) is not None}
    if data.get("thinking") is not None:
        asked["thinking"] = read.fields(data["thinking"])
    effort = read.text(read.fields(data.get("output_config")).get("effort"), "output_config.effort")
    return {**asked, "effort": effort} if effort else asked
