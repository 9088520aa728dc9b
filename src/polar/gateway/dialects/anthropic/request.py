"""Anthropic requests: the fields of the body, each read, refused by name or left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from polar.gateway.dialects import fields as read
from polar.gateway.dialects.anthropic.messages import History, read_system
from polar.gateway.dialects.anthropic.tools import offered_tools
from polar.gateway.dialects.base import (
    ChatRequest,
    HistoryItem,
    Problem,
    RawRequest,
    digest_item,
    digest_rest,
)

COUNT_ACTION = "countTokens"
"""What a request asks for that wants to know only how long its prompt is."""

THREAD_REFUSED = "thread_unsupported_request"
REFUSED = {
    "container": "nothing is run on the provider's side here",
    "mcp_servers": "nothing is run on the provider's side here",
    "compaction": "a summary is not a sample of the conversation; ask for it in a message",
}
"""Fields that change what is asked for and cannot be honoured, with the reason."""


def read_request(raw: RawRequest) -> ChatRequest:
    data = raw.data
    messages = raw.history(read.items(data.get("messages"), "messages"))
    # First, because it also proves that every part can be written as JSON again.
    head = digest_item(unmarked([data.get("tools"), data.get("system")]))
    items = (head, *(item.digest(unmarked) for item in messages))
    rest = digest_rest(data, ("tools", "system", "messages"))
    if data.get("thread"):
        # The provider's SDK goes on without a thread when it reads this code.
        message = "thread is not supported: the whole history must come with each request"
        raise Problem(400, THREAD_REFUSED, message, param="thread")
    for name, reason in REFUSED.items():
        if data.get(name):
            raise read.bad(f"{name} is not supported: {reason}", name)
    counting = raw.action == COUNT_ACTION
    history = _history(data.get("system"), messages, counting=counting)
    return ChatRequest(
        messages=tuple(history.messages),
        tools=offered_tools(data.get("tools"), data.get("tool_choice"), history.changes),
        stream=bool(data.get("stream")),
        max_tokens=_max_tokens(data.get("max_tokens"), counting=counting),
        stop=read.stop_texts(data.get("stop_sequences"), "stop_sequences"),
        json_schema=_json_schema(data),
        asked=_asked(data),
        items=items,
        rest=rest,
    )


def unmarked(value: Any) -> Any:
    """A raw value without the marks of the provider's cache, which harnesses move on with every turn. A text that
    bears one has to be a block; without it the same text is often a plain one."""
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


def _history(system: Any, messages: Sequence[HistoryItem], *, counting: bool) -> History:
    if not messages:
        raise read.bad("messages must be a list that is not empty", "messages")
    if read.fields(messages[-1].value).get("role") == "assistant" and not counting:
        raise read.bad("the last of the messages must not be the assistant's: a turn is sampled whole", "messages")
    history = History(read_system(system))
    for item in messages:
        if item.made is None:
            alone = History([])
            alone.add(item.value)
            item.made = alone
        history.extend(item.made)
    return history


def _max_tokens(value: Any, *, counting: bool) -> int | None:
    if value is None and not counting:
        raise read.bad("max_tokens is required", "max_tokens")
    return read.positive(value, "max_tokens")


def _json_schema(data: dict[str, Any]) -> dict[str, Any] | None:
    """`output_format` is the older place of the same."""
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


def _asked(data: dict[str, Any]) -> dict[str, Any]:
    """How the harness would like the reply to be sampled."""
    asked: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k"):
        if data.get(name) is not None:
            asked[name] = _number(data[name], name)
    if data.get("thinking") is not None:
        asked["thinking"] = read.fields(data["thinking"])
    effort = read.text(read.fields(data.get("output_config")).get("effort"), "output_config.effort")
    return {**asked, "effort": effort} if effort else asked


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or value < 0:
        raise read.bad(f"{where} must be a number that is not negative", where)
    return value
