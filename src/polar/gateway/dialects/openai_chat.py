"""OpenAI Chat Completions: `POST /v1/chat/completions`, streaming and not.

Fields we read are translated, a known few are refused with their name, everything else is ignored: harnesses
grow new fields every month, and docs/dialects.md lists which is which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import orjson

from polar.gateway.dialects.base import ChatRequest, ErrorReply, Problem, Reply, digest_item
from polar.types import Message, Tool, ToolCall

REFUSED = ("functions", "function_call", "logit_bias", "audio", "prediction", "stop")
"""Fields that change what is sampled and that we cannot honour (yet); dropping them silently would lie."""

SAMPLING_FIELDS = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "aborted": "stop"}


class OpenAIChat:
    name = "openai_chat"

    def parse(self, body: bytes) -> ChatRequest:
        data = _object(body)
        _refuse(data)
        raw_messages = data.get("messages")
        if not isinstance(raw_messages, list) or not raw_messages:
            raise _bad("messages must be a non-empty list", "messages")
        raw_items = cast("list[Any]", raw_messages)
        # First, because it also proves that every part can be written as JSON again.
        items = (digest_item(data.get("tools")), *map(digest_item, raw_items))
        tools = _tools(data.get("tools"), data.get("tool_choice"))
        max_tokens = data.get("max_completion_tokens")
        if max_tokens is None:
            max_tokens = data.get("max_tokens")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise _bad("max_tokens must be a positive integer", "max_tokens")
        return ChatRequest(
            messages=tuple(_message(item, index) for index, item in enumerate(raw_items)),
            tools=tools,
            stream=bool(data.get("stream", False)),
            max_tokens=max_tokens,
            asked_sampling={name: data[name] for name in SAMPLING_FIELDS if data.get(name) is not None},
            items=items,
            include_usage=bool(_fields(data.get("stream_options")).get("include_usage")),
        )

    def reply(self, reply: Reply) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": reply.message.content or None}
        if reply.message.reasoning:
            message["reasoning_content"] = reply.message.reasoning
        if reply.message.tool_calls:
            message["tool_calls"] = [_wire_call(call) for call in reply.message.tool_calls]
        else:
            message["content"] = reply.message.content
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[reply.finish_reason], "logprobs": None}
        return orjson.dumps(
            {
                "id": f"chatcmpl-{reply.reply_id}",
                "object": "chat.completion",
                "created": reply.created,
                "model": reply.model,
                "choices": [choice],
                "usage": _usage(reply),
            }
        )

    def encoder(self, request: ChatRequest, reply_id: str, model: str, created: int) -> ChatStream:
        head = {
            "id": f"chatcmpl-{reply_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        return ChatStream(head, include_usage=request.include_usage)

    def error(self, problem: Problem) -> ErrorReply:
        headers = {"x-should-retry": "true" if problem.retry else "false"}
        return ErrorReply(problem.status, headers, orjson.dumps(_error_body(problem)))


class ChatStream:
    def __init__(self, head: dict[str, Any], *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def heartbeat(self) -> bytes:
        return self._chunk({})

    def body(self, reply: Reply) -> Iterator[bytes]:
        if reply.message.reasoning:
            yield self._chunk({"reasoning_content": reply.message.reasoning})
        if reply.message.content:
            yield self._chunk({"content": reply.message.content})
        for index, call in enumerate(reply.message.tool_calls):
            opening = {**_wire_call(call), "index": index, "function": {"name": call.name, "arguments": ""}}
            yield self._chunk({"tool_calls": [opening]})
            yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})

    def end(self, reply: Reply) -> bytes:
        last = self._chunk({}, finish_reason=_FINISH[reply.finish_reason])
        if self._include_usage:
            last += _event({**self._head, "choices": [], "usage": _usage(reply)})
        return last + b"data: [DONE]\n\n"

    def error(self, problem: Problem) -> bytes:
        return _event(_error_body(problem))

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice]})


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _error_body(problem: Problem) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
    return {"error": error}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _wire_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _bad(message: str, param: str | None = None) -> Problem:
    return Problem(400, "invalid_request", message, param=param)


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad("the body is not valid JSON") from error
    if not isinstance(data, dict):
        raise _bad("the body must be a JSON object")
    return cast("dict[str, Any]", data)


def _fields(value: Any) -> dict[str, Any]:
    """An object's fields; anything else has none, and the check of the field that is needed says so."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _refuse(data: dict[str, Any]) -> None:
    for name in REFUSED:
        if data.get(name):
            raise _bad(f"{name} is not supported", name)
    if data.get("n") not in (None, 1):
        raise _bad("n must be one: each sample is a session of its own", "n")
    response_format = data.get("response_format")
    if response_format not in (None, {"type": "text"}):
        raise _bad("response_format other than text is not supported", "response_format")


def _tools(raw: Any, choice: Any) -> tuple[Tool, ...]:
    if choice not in (None, "auto", "none"):
        raise _bad(
            "tool_choice must be auto or none: a forced call is not sampled from the plain model", "tool_choice"
        )
    if raw is None or choice == "none":
        return ()
    if not isinstance(raw, list):
        raise _bad("tools must be a list", "tools")
    return tuple(_tool(item, index) for index, item in enumerate(cast("list[Any]", raw)))


def _tool(raw: Any, index: int) -> Tool:
    function = _fields(_fields(raw).get("function"))
    name: Any = function.get("name")
    if not isinstance(name, str) or not name:
        raise _bad("a tool must be a function with a name", f"tools[{index}]")
    return Tool(
        name=name,
        description=str(function.get("description") or ""),
        parameters=_fields(function.get("parameters")),
    )


def _message(raw: Any, index: int) -> Message:
    where = f"messages[{index}]"
    fields = _fields(raw)
    role: Any = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f"unknown role {str(role)[:40]!r}", f"{where}.role")
    reasoning: Any = fields.get("reasoning_content") or fields.get("reasoning")
    return Message(
        role=cast("Any", _ROLES[role]),
        content=_text(fields.get("content"), f"{where}.content"),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        tool_calls=_tool_calls(fields.get("tool_calls"), where),
        tool_call_id=str(fields.get("tool_call_id") or ""),
    )


def _text(content: Any, where: str) -> str:
    """Null, a string or text parts; the parts of one message are one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad("content must be text or a list of parts", where)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        text: Any = _fields(part).get("text")
        if not isinstance(text, str):
            raise _bad("this model takes text parts only", where)
        texts.append(text)
    return "".join(texts)


def _tool_calls(raw: Any, where: str) -> tuple[ToolCall, ...]:
    if not raw:
        return ()
    if not isinstance(raw, list):
        raise _bad("tool_calls must be a list", f"{where}.tool_calls")
    return tuple(_tool_call(item, f"{where}.tool_calls") for item in cast("list[Any]", raw))


def _tool_call(raw: Any, where: str) -> ToolCall:
    function = _fields(_fields(raw).get("function"))
    name: Any = function.get("name")
    if not isinstance(name, str):
        raise _bad("a tool call needs a function with a name", where)
    arguments: Any = function.get("arguments", "")
    return ToolCall(
        name=name,
        arguments=arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
        call_id=str(_fields(raw).get("id") or ""),
    )
