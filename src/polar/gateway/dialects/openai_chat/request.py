"""A Chat Completions request: its fields are translated, refused by name, or ignored.

Unknown fields are ignored, because harnesses add new ones every month. Legacy Completions share some of the code.
"""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.openai_chat.messages import read_messages
from polar.gateway.dialects.raw_request import RawRequest, digest_item, digest_rest
from polar.types import Tool

REFUSED = {
    "functions": "declare tools instead",
    "function_call": "declare tools instead",
    "logit_bias": "replies are sampled from the plain model",
    "audio": "replies are text",
    "prediction": "replies are sampled token by token",
}
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
    "top_k": (-1, 2**31),
    "seed": (-(2**63), 2**63),
}
_WHOLE = frozenset({"top_k", "seed"})
THINKING_FIELDS = ("reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs")
"""Fields with which harnesses switch a local model's thinking on and off. Their values are not checked."""


def read_request(raw: RawRequest) -> ChatRequest:
    data = raw.data
    _refuse(data)
    history = raw.history(read.items(data.get("messages"), "messages"))
    if not history:
        raise read.bad("messages must be a non-empty list", "messages")
    # First, because it also proves that every part can be serialised again.
    digests = (digest_item(data.get("tools") or None), *(item.digest() for item in history))
    rest = digest_rest(data, ("tools", "messages"))
    return ChatRequest(
        messages=read_messages(history),
        tools=_tools(data),
        stream=read.flag(data.get("stream"), "stream"),
        max_tokens=_max_tokens(data),
        stop=read.stop_texts(data.get("stop"), "stop"),
        json_schema=_json_schema(data.get("response_format")),
        asked=read_sampling(data),
        items=digests,
        rest=rest,
        include_usage=wants_usage(data),
    )


def read_sampling(data: dict[str, Any]) -> dict[str, Any]:
    """Sampling and thinking parameters. The numbers are checked, because a task may follow them."""
    numbers = {
        name: read.number(data[name], name, *_RANGES[name], whole=name in _WHOLE)
        for name in _RANGES
        if data.get(name) is not None
    }
    return numbers | {name: data[name] for name in THINKING_FIELDS if data.get(name) is not None}


def wants_usage(data: dict[str, Any]) -> bool:
    options = read.fields(data.get("stream_options"))
    return read.flag(options.get("include_usage"), "stream_options.include_usage")


def refuse_several_samples(data: dict[str, Any], *names: str) -> None:
    for name in names:
        if data.get(name) not in (None, 1):
            raise read.bad(f"{name} must be one: {read.ONE_SAMPLE}", name)


def format_schema(kind: Any, schema: Any, kind_field: str, schema_field: str) -> dict[str, Any] | None:
    """The schema that a reply in a response format must match; None for plain text."""
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise read.bad("the response format must be text, json_object or json_schema", kind_field)
    if not isinstance(schema, dict):
        raise read.bad(f"{schema_field} must be a JSON schema", schema_field)
    return read.fields(schema)


def _refuse(data: dict[str, Any]) -> None:
    read.refuse_fields(data, REFUSED)
    refuse_several_samples(data, "n")
    if data.get("web_search_options") is not None:  # even an empty one asks for a search
        raise read.bad("web_search_options is not supported: Polar runs no web search", "web_search_options")
    if data.get("modalities") not in (None, [], ["text"]):
        raise read.bad("modalities other than text are not supported", "modalities")


def _max_tokens(data: dict[str, Any]) -> int | None:
    given = [name for name in ("max_completion_tokens", "max_tokens") if data.get(name) is not None]
    return read.positive(data[given[0]], given[0]) if given else None


def _json_schema(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    schema = read.fields(read.fields(value).get("json_schema")).get("schema")
    kind = read.fields(value).get("type")
    return format_schema(kind, schema, "response_format", "response_format.json_schema.schema")


def _tools(data: dict[str, Any]) -> tuple[Tool, ...]:
    """The tools that the model may call. It does not see the others."""
    raw = read.items(data.get("tools"), "tools")
    tools = tuple(_tool(read.fields(item), f"tools[{index}]") for index, item in enumerate(raw))
    choice = data.get("tool_choice")
    allowed = read.fields(read.fields(choice).get("allowed_tools"))
    if read.fields(choice).get("type") != "allowed_tools" or allowed.get("mode") != "auto":
        return tools if read.calls_allowed(choice) else ()
    where = "tool_choice.allowed_tools.tools"
    names = {_tool(read.fields(item), where).name for item in read.items(allowed.get("tools"), where)}
    return tuple(tool for tool in tools if tool.name in names)


def _tool(raw: dict[str, Any], where: str) -> Tool:
    kind = raw.get("type", "function")
    if kind not in ("function", "custom"):
        raise read.bad(f"{where} must be a function or a custom tool: Polar runs no tools itself", where)
    declared, where = read.fields(raw.get(kind)), f"{where}.{kind}"
    name = read.name(declared.get("name"), f"{where}.name")
    description = read.text(declared.get("description"), f"{where}.description")
    if kind == "custom":
        return read.freeform_tool(name, description)
    return Tool(name, description, read.mapping(declared.get("parameters"), f"{where}.parameters"))
