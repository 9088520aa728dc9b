"""A Google generateContent request: its fields are translated, refused by name, or ignored.

The provider accepts two spellings of a field, `maxOutputTokens` and `max_output_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.google.messages import GoogleHistory, camel_fields, one_or_list, system_text
from polar.gateway.dialects.google.tools import closed, json_schema, read_tools
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import HistoryItem, RawRequest, digest_item, digest_rest
from polar.types import Message

GENERATE, STREAM, COUNT = "generateContent", "streamGenerateContent", "countTokens"

_STORED = "only Google's servers store it"
REFUSED = {"cachedContent": _STORED, "continuationToken": _STORED}

ANY_JSON: dict[str, Any] = {"anyOf": [{"type": "object"}, {"type": "array"}]}
"""The schema of `application/json` without a schema."""

_ITEM_FIELDS = ("contents", "tools", "systemInstruction", "system_instruction")
_SAMPLING = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_WHOLE = ("topK", "seed")
_MOST_WHOLE = 2**63 - 1
"""The provider's whole numbers are signed, with sixty-four bits."""


def read_request(raw: RawRequest) -> ChatRequest:
    if raw.action not in (GENERATE, STREAM, COUNT):
        raise Problem(404, "unknown_path", f"unknown method {raw.action[:40]!r}")
    data = _unwrapped(raw)
    body = camel_fields(data, "the body")
    history = raw.history(one_or_list(body.get("contents"), "contents"))
    # First, because it also proves that every part can be serialised again.
    head = digest_item([body.get("tools"), body.get("systemInstruction")])
    digests = (head, *(item.digest() for item in history))
    rest = digest_rest(data, _ITEM_FIELDS)
    read.refuse_fields(body, REFUSED)
    config = camel_fields(body.get("generationConfig"), "generationConfig")
    _refuse_settings(config)
    return ChatRequest(
        messages=_messages(body.get("systemInstruction"), history, may_end_with_model=raw.action == COUNT),
        tools=read_tools(body),
        stream=raw.action == STREAM,
        array=raw.action == STREAM and raw.query.get("alt") != "sse",
        max_tokens=read.positive(config.get("maxOutputTokens"), "generationConfig.maxOutputTokens"),
        stop=read.stop_texts(config.get("stopSequences"), "generationConfig.stopSequences"),
        json_schema=_reply_schema(config),
        asked=_sampling(config),
        items=digests,
        rest=rest,
    )


def _unwrapped(raw: RawRequest) -> dict[str, Any]:
    """A request for a count may contain the whole request to count."""
    inner: Any = raw.data.get("generateContentRequest", raw.data.get("generate_content_request"))
    if raw.action != COUNT or inner is None:
        return raw.data
    return read.mapping(inner, "generateContentRequest")


def _messages(system: Any, history: Sequence[HistoryItem], *, may_end_with_model: bool) -> tuple[Message, ...]:
    if not history:
        raise read.bad("contents must be a non-empty list", "contents")
    conversation = GoogleHistory(history)
    if conversation.ends_with_model and not may_end_with_model:
        message = "contents must not end with a turn of the model: a turn is always sampled as a whole"
        raise read.bad(message, f"contents[{len(history) - 1}]")
    instruction = system_text(system)
    first = [Message(role="system", content=instruction)] if instruction else []
    return (*first, *conversation.messages())


def _refuse_settings(config: dict[str, Any]) -> None:
    if config.get("candidateCount") not in (None, 1):
        raise read.bad(f"candidateCount must be one: {read.ONE_SAMPLE}", "generationConfig.candidateCount")
    where = "generationConfig.responseModalities"
    modalities = read.items(config.get("responseModalities"), where)
    if any(str(kind).upper() not in ("TEXT", "MODALITY_UNSPECIFIED") for kind in modalities):
        raise read.bad("responseModalities: this model writes text only", where)


def _reply_schema(config: dict[str, Any]) -> dict[str, Any] | None:
    where = "generationConfig.responseMimeType"
    mime = read.text(config.get("responseMimeType"), where)
    if mime not in ("", "text/plain", "application/json"):
        raise read.bad(f"{where} must be text/plain or application/json", where)
    if config.get("responseJsonSchema") is not None:
        return read.mapping(config["responseJsonSchema"], "generationConfig.responseJsonSchema")
    if config.get("responseSchema") is not None:
        return closed(json_schema(read.mapping(config["responseSchema"], "generationConfig.responseSchema")))
    return ANY_JSON if mime == "application/json" else None


def _sampling(config: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for field, our_name in _SAMPLING.items():
        if config.get(field) is not None:
            whole = field in _WHOLE
            limits = (-_MOST_WHOLE, _MOST_WHOLE) if whole else ()
            asked[our_name] = read.number(config[field], f"generationConfig.{field}", *limits, whole=whole)
    thinking = camel_fields(config.get("thinkingConfig"), "generationConfig.thinkingConfig")
    return {**asked, "thinking": thinking} if thinking else asked
