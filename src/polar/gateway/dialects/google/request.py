"""A Google generateContent request read into a `ChatRequest`.

Fields we read are translated, a known few are refused with their name, everything else is ignored:
docs/dialects/google.md lists which is which. Both spellings of a field, `maxOutputTokens` and
`max_output_tokens`, are the provider's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from polar.gateway.dialects.base import ChatRequest, HistoryItem, Problem, RawRequest, digest_item, digest_rest
from polar.gateway.dialects.fields import bad, fields, items, name, positive, stop_texts, text
from polar.gateway.dialects.google.messages import Conversation, several, spelled, system_text
from polar.gateway.dialects.google.tools import closed, json_schema
from polar.types import Message, Tool

GENERATE, STREAM, COUNT = "generateContent", "streamGenerateContent", "countTokens"

REFUSED = ("cachedContent", "continuationToken")
"""They stand for a conversation that only Google's servers hold."""

ANY_JSON: dict[str, Any] = {"anyOf": [{"type": "object"}, {"type": "array"}]}
"""What `application/json` without a schema asks for."""

_ITEM_FIELDS = ("contents", "tools", "systemInstruction", "system_instruction")
_SAMPLING = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_WHOLE = ("top_k", "seed")
MOST_WHOLE = 2**63
"""The provider's whole numbers have sixty-four bits."""
_MODE = "toolConfig.functionCallingConfig.mode"


def read_request(raw: RawRequest) -> ChatRequest:
    if raw.action not in (GENERATE, STREAM, COUNT):
        raise Problem(404, "unknown_path", f"unknown method {raw.action[:40]!r}")
    data = _unwrapped(raw)
    body = spelled(data, "the body")
    # First, because it also proves that every part can be written as JSON again.
    contents = several(body.get("contents"), "contents")
    head = digest_item([body.get("tools"), body.get("systemInstruction")])
    history = raw.history(contents)
    digests = (head, *(item.digest() for item in history))
    rest = digest_rest(data, _ITEM_FIELDS)
    for field in REFUSED:
        if body.get(field):
            raise bad(f"{field} is not supported", field)
    config = spelled(body.get("generationConfig"), "generationConfig")
    _refuse_settings(config)
    return ChatRequest(
        messages=_messages(body.get("systemInstruction"), history, may_end_with_model=raw.action == COUNT),
        tools=_tools(body),
        stream=raw.action == STREAM,
        array=raw.action == STREAM and raw.query.get("alt") != "sse",
        max_tokens=positive(config.get("maxOutputTokens"), "generationConfig.maxOutputTokens"),
        stop=stop_texts(config.get("stopSequences"), "generationConfig.stopSequences"),
        json_schema=_reply_schema(config),
        asked=_asked(config),
        items=digests,
        rest=rest,
    )


def _unwrapped(raw: RawRequest) -> dict[str, Any]:
    """What is to be counted may be a whole request of its own."""
    inner: Any = raw.data.get("generateContentRequest", raw.data.get("generate_content_request"))
    if raw.action != COUNT or inner is None:
        return raw.data
    if not isinstance(inner, dict):
        raise bad("generateContentRequest must be an object", "generateContentRequest")
    return fields(inner)


def _messages(system: Any, history: Sequence[HistoryItem], *, may_end_with_model: bool) -> tuple[Message, ...]:
    if not history:
        raise bad("contents must be a non-empty list", "contents")
    conversation = Conversation()
    conversation.read(history)
    if conversation.ends_with_model and not may_end_with_model:
        message = "contents must not end with a turn of the model: a reply that is begun for it is not sampled"
        raise bad(message, f"contents[{len(history) - 1}]")
    instruction = system_text(system)
    first = [Message(role="system", content=instruction)] if instruction else []
    return (*first, *conversation.messages())


def _refuse_settings(config: dict[str, Any]) -> None:
    if config.get("candidateCount") not in (None, 1):
        raise bad(
            "candidateCount must be one: each sample is a session of its own", "generationConfig.candidateCount"
        )
    where = "generationConfig.responseModalities"
    modalities = items(config.get("responseModalities"), where)
    if any(str(kind).upper() not in ("TEXT", "MODALITY_UNSPECIFIED") for kind in modalities):
        raise bad("responseModalities: this model writes text only", where)


def _reply_schema(config: dict[str, Any]) -> dict[str, Any] | None:
    where = "generationConfig.responseMimeType"
    mime = text(config.get("responseMimeType"), where)
    if mime not in ("", "text/plain", "application/json"):
        raise bad(f"{where} must be text/plain or application/json", where)
    for field in ("responseJsonSchema", "responseSchema"):
        schema: Any = config.get(field)
        if schema is not None:
            read = _schema_object(schema, f"generationConfig.{field}")
            return read if field == "responseJsonSchema" else closed(json_schema(read))
    return ANY_JSON if mime == "application/json" else None


def _schema_object(schema: Any, where: str) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise bad(f"{where} must be an object", where)
    return fields(schema)


def _asked(config: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for field, our_name in _SAMPLING.items():
        value: Any = config.get(field)
        if value is not None:
            asked[our_name] = _number(value, f"generationConfig.{field}", whole=our_name in _WHOLE)
    thinking = spelled(config.get("thinkingConfig"), "generationConfig.thinkingConfig")
    if thinking:
        asked["thinking"] = thinking
    return asked


def _number(value: Any, where: str, *, whole: bool) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or (whole and not _is_whole(value)):
        raise bad(f"{where} must be a {'whole ' if whole else ''}number", where)
    return int(value) if whole else value


def _is_whole(value: float) -> bool:
    return value == int(value) and abs(value) < MOST_WHOLE


def _tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    """The declared functions. What Google's servers would run, such as a search, is left out."""
    allowed = _allowed(body.get("toolConfig"))
    found: list[Tool] = []
    for index, raw in enumerate(several(body.get("tools"), "tools")):
        where = f"tools[{index}].functionDeclarations"
        declared = several(spelled(raw, f"tools[{index}]").get("functionDeclarations"), where)
        found += [_tool(item, f"{where}[{number}]") for number, item in enumerate(declared)]
    return tuple(tool for tool in found if allowed is None or tool.name in allowed)


def _allowed(raw: Any) -> tuple[str, ...] | None:
    """Names of the functions that the model may call; None: all."""
    config = spelled(spelled(raw, "toolConfig").get("functionCallingConfig"), "toolConfig.functionCallingConfig")
    mode = text(config.get("mode"), _MODE).upper()
    if mode == "ANY":
        raise bad(f"{_MODE} must not be ANY: a forced call is not sampled from the plain model", _MODE)
    if mode not in ("", "MODE_UNSPECIFIED", "AUTO", "VALIDATED", "NONE"):
        raise bad(f"unknown mode {mode[:40]!r}", _MODE)
    if mode == "NONE":
        return ()
    where = "toolConfig.functionCallingConfig.allowedFunctionNames"
    names = tuple(name(item, where) for item in items(config.get("allowedFunctionNames"), where))
    return names or None


def _tool(raw: Any, where: str) -> Tool:
    function = spelled(raw, where)
    schema: Any = function.get("parametersJsonSchema")
    own: Any = function.get("parameters")
    return Tool(
        name=name(function.get("name"), f"{where}.name"),
        description=text(function.get("description"), f"{where}.description"),
        parameters=json_schema(fields(own)) if schema is None else fields(schema),
    )
