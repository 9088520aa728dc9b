"""OpenAI Chat Completions: `POST /v1/chat/completions`, streaming and not.

Fields we read are translated, a known few are refused with their name, everything else is ignored: harnesses
grow new fields every month, and docs/dialects/openai_chat.md lists which is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson

from polar.gateway.dialects.base import (
    ChatRequest,
    ErrorReply,
    HistoryItem,
    Problem,
    RawRequest,
    Reply,
    ReplyHead,
    digest_item,
    digest_rest,
)
from polar.gateway.dialects.fields import (
    Content,
    arguments_text,
    bad,
    fields,
    freeform_tool,
    items,
    name,
    positive,
    stop_texts,
    text,
)
from polar.gateway.dialects.openai_chat.request import (
    read_asked,
    read_flag,
    refuse_fields,
    refuse_several_samples,
    wants_usage,
)
from polar.gateway.dialects.openai_chat.stream import FINISH, ChatStream, wire_message, wire_usage
from polar.gateway.dialects.openai_errors import openai_error
from polar.types import Message, Tool, ToolCall

REFUSED = {
    "functions": "declare tools instead",
    "function_call": "declare tools instead",
    "logit_bias": "replies are sampled from the plain model",
    "audio": "replies are text",
    "prediction": "replies are sampled token by token",
}
REFUSED_IN_MESSAGES = {"function_call": "send tool_calls instead", "audio": "messages are text and images"}

_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class OpenAIChat:
    name = "openai_chat"
    history_field = "messages"

    def parse(self, raw: RawRequest) -> ChatRequest:
        data = raw.data
        _refuse(data)
        history = raw.history(items(data.get("messages"), "messages"))
        if not history:
            raise bad("messages must be a non-empty list", "messages")
        # First, because it also proves that every part can be written as JSON again.
        digests = (digest_item(data.get("tools") or None), *(item.digest() for item in history))
        rest = digest_rest(data, ("tools", "messages"))
        return ChatRequest(
            messages=_messages(history),
            tools=_tools(data),
            stream=read_flag(data.get("stream"), "stream"),
            max_tokens=_max_tokens(data),
            stop=stop_texts(data.get("stop"), "stop"),
            json_schema=_json_schema(data.get("response_format")),
            asked=read_asked(data),
            items=digests,
            rest=rest,
            include_usage=wants_usage(data),
        )

    def reply(self, request: ChatRequest, reply: Reply) -> bytes:
        choice = {
            "index": 0,
            "message": wire_message(request, reply.message),
            "finish_reason": FINISH[reply.finish_reason],
            "logprobs": None,
        }
        return orjson.dumps(
            {
                "id": f"chatcmpl-{reply.head.reply_id}",
                "object": "chat.completion",
                "created": reply.head.created,
                "model": reply.head.model,
                "choices": [choice],
                "usage": wire_usage(reply),
            }
        )

    def encoder(self, request: ChatRequest, head: ReplyHead) -> ChatStream:
        return ChatStream(request, head)

    def error(self, problem: Problem) -> ErrorReply:
        return openai_error(problem)

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes:
        """The listing, or its single entry. The context's size stands where local servers put it."""
        entry = {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": "polar",
            "max_model_len": context_tokens,
        }
        return orjson.dumps(entry if one else {"object": "list", "data": [entry]})


def _refuse(data: dict[str, Any]) -> None:
    refuse_fields(data, REFUSED)
    refuse_several_samples(data, "n")
    if data.get("web_search_options") is not None:  # even an empty one asks for a search
        raise bad("web_search_options is not supported: nothing is searched here", "web_search_options")
    if data.get("modalities") not in (None, [], ["text"]):
        raise bad("modalities other than text are not supported", "modalities")


def _max_tokens(data: dict[str, Any]) -> int | None:
    given = [name for name in ("max_completion_tokens", "max_tokens") if data.get(name) is not None]
    return positive(data[given[0]], given[0]) if given else None


def _json_schema(value: Any) -> dict[str, Any] | None:
    wanted = fields(value)
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            where = "response_format.json_schema.schema"
            schema = fields(wanted.get("json_schema")).get("schema")
            if not isinstance(schema, dict):
                raise bad(f"{where} must be a JSON schema", where)
            return fields(schema)
        case _:
            if value is None:
                return None
            raise bad("response_format must be text, json_object or json_schema", "response_format")


def _tools(data: dict[str, Any]) -> tuple[Tool, ...]:
    """The tools the model may call; it is shown no others."""
    raw = items(data.get("tools"), "tools")
    tools = tuple(_tool(fields(item), f"tools[{index}]") for index, item in enumerate(raw))
    choice = data.get("tool_choice")
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return ()
    allowed = fields(fields(choice).get("allowed_tools"))
    if fields(choice).get("type") != "allowed_tools" or allowed.get("mode") != "auto":
        message = (
            "tool_choice must leave the choice to the model: a forced call is not sampled from the plain model"
        )
        raise bad(message, "tool_choice")
    where = "tool_choice.allowed_tools.tools"
    names = {_tool(fields(item), where).name for item in items(allowed.get("tools"), where)}
    return tuple(tool for tool in tools if tool.name in names)


def _tool(raw: dict[str, Any], where: str) -> Tool:
    kind = raw.get("type", "function")
    if kind not in ("function", "custom"):
        raise bad(f"{where} must be a function or a custom tool: no tool runs here", where)
    declared, where = fields(raw.get(kind)), f"{where}.{kind}"
    tool_name = name(declared.get("name"), f"{where}.name")
    description = text(declared.get("description"), f"{where}.description")
    if kind == "custom":
        return freeform_tool(tool_name, description)
    parameters = declared.get("parameters")
    if not isinstance(parameters, dict | None):
        raise bad(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
    return Tool(name=tool_name, description=description, parameters=fields(parameters))


def _messages(history: Sequence[HistoryItem]) -> tuple[Message, ...]:
    return tuple([item.made or _read(item, f"messages[{index}]") for index, item in enumerate(history)])


def _read(item: HistoryItem, where: str) -> Message:
    item.made = _message(item.value, where)
    return item.made


def _message(raw: Any, where: str) -> Message:
    given = fields(raw)
    role: Any = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"unknown role {str(role)[:40]!r}", f"{where}.role")
    refuse_fields(given, REFUSED_IN_MESSAGES, f"{where}.")
    content = _content(given.get("content"), f"{where}.content")
    if role == "assistant":
        return _assistant(given, content, where)
    return Message(
        role=_ROLES[role],
        content=content.text,
        images=content.images,
        tool_call_id=text(given.get("tool_call_id"), f"{where}.tool_call_id") if role == "tool" else "",
    )


def _assistant(given: dict[str, Any], content: Content, where: str) -> Message:
    content.add_text(text(given.get("refusal"), f"{where}.refusal"))
    reasoning = [text(given.get(key), f"{where}.{key}") for key in ("reasoning_content", "reasoning")]
    calls = items(given.get("tool_calls"), f"{where}.tool_calls")
    return Message(
        role="assistant",
        content=content.text,
        reasoning=reasoning[0] or reasoning[1],
        tool_calls=tuple(_call(fields(c), f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)),
        images=content.images,
    )


def _content(value: Any, where: str) -> Content:
    """Null, a text, or parts that are put together in order."""
    content = Content()
    if isinstance(value, str):
        content.add_text(value)
        return content
    for index, part in enumerate(items(value, where)):
        _add_part(content, fields(part), f"{where}[{index}]")
    return content


def _add_part(content: Content, part: dict[str, Any], where: str) -> None:
    kind = part.get("type", "text")
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else fields(image).get("url")
        content.add_image(name(url, f"{where}.image_url"))
        return
    said = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(said, str):
        raise bad(f"{where} must be a part with a text or an image", where)
    content.add_text(said)


def _call(raw: dict[str, Any], where: str) -> ToolCall:
    call_id = text(raw.get("id"), f"{where}.id")
    if raw.get("type") == "custom":
        custom = fields(raw.get("custom"))
        written = {"input": text(custom.get("input"), f"{where}.custom.input")}
        return ToolCall(name(custom.get("name"), f"{where}.custom.name"), arguments_text(written), call_id)
    function = fields(raw.get("function"))
    arguments = function.get("arguments")
    return ToolCall(
        name=name(function.get("name"), f"{where}.function.name"),
        arguments="" if arguments is None else arguments_text(arguments),
        call_id=call_id,
    )
