"""The gateway's OpenAPI page: what each path takes, so that people and fuzzers can read it.

The bodies are the providers'. Described here are the fields that carry a call; further ones are accepted and, as
docs/dialects.md lists them, translated, ignored or refused.
"""

from __future__ import annotations

from typing import Any

from polar import __version__

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 1}


def _list(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _body(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _messages(*roles: str) -> Schema:
    content = _either(TEXT, _list(OBJECT))
    return _list(_body(("role", "content"), role={"enum": list(roles)}, content=content), minItems=1)


BODIES: dict[str, Schema] = {
    "anthropic": _body(
        ("model", "max_tokens", "messages"),
        model=TEXT,
        max_tokens=COUNT,
        messages=_messages("user", "assistant", "system"),
        system=_either(TEXT, _list(OBJECT)),
        tools=_list(OBJECT),
        tool_choice=OBJECT,
        stop_sequences=_list(TEXT),
        thinking=OBJECT,
        output_config=OBJECT,
        temperature=NUMBER,
        stream=FLAG,
    ),
    "openai_chat": _body(
        ("model", "messages"),
        model=TEXT,
        messages=_messages("system", "developer", "user", "assistant", "tool"),
        tools=_list(OBJECT),
        tool_choice=_either(TEXT, OBJECT),
        max_completion_tokens=COUNT,
        stop=_either(TEXT, _list(TEXT)),
        response_format=OBJECT,
        temperature=NUMBER,
        stream=FLAG,
        stream_options=OBJECT,
    ),
    "openai_completions": _body(
        ("model", "prompt"),
        model=TEXT,
        prompt=_either(TEXT, _list({"type": "integer"})),
        max_tokens=COUNT,
        stop=_either(TEXT, _list(TEXT)),
        stream=FLAG,
    ),
    "openai_responses": _body(
        ("model", "input"),
        model=TEXT,
        input=_either(TEXT, _list(OBJECT)),
        instructions=TEXT,
        tools=_list(OBJECT),
        tool_choice=_either(TEXT, OBJECT),
        max_output_tokens=COUNT,
        text=OBJECT,
        reasoning=OBJECT,
        stream=FLAG,
    ),
    "google": _body(
        ("contents",),
        contents=_list(_body(("parts",), role={"enum": ["user", "model"]}, parts=_list(OBJECT)), minItems=1),
        systemInstruction=OBJECT,
        tools=_list(OBJECT),
        toolConfig=OBJECT,
        generationConfig=OBJECT,
    ),
}
POSTS = {
    "/v1/messages": ("anthropic", "Anthropic Messages"),
    "/v1/messages/count_tokens": ("anthropic", "Counts a prompt's tokens"),
    "/v1/chat/completions": ("openai_chat", "OpenAI Chat Completions"),
    "/v1/completions": ("openai_completions", "OpenAI Completions, for a prompt laid out by the sender"),
    "/v1/responses": ("openai_responses", "OpenAI Responses"),
    "/v1/responses/input_tokens": ("openai_responses", "Counts a prompt's tokens"),
    **{
        f"/{version}/models/{{model}}:{action}": ("google", f"Google {action}")
        for version in ("v1beta", "v1")
        for action in ("generateContent", "streamGenerateContent", "countTokens")
    },
}
LISTINGS = ("/v1/models", "/v1/models/{model}", "/v1beta/models", "/v1beta/models/{model}")
STATUSES = {
    "200": "The reply, in the provider's shape.",
    "400": "Refused for good: a bad request, a full context, a used-up budget, or a session that has ended.",
    "401": "An unknown key.",
    "404": "No such path or model.",
    "413": "The body is too large.",
    "415": "The body is packed in a way that is not known here.",
    "429": "The engine is busy; `retry-after` says for how long.",
    "500": "The call could not be kept.",
    "502": "The engine failed; asking again may help.",
    "503": "The engine failed; asking again may help.",
}


def describe() -> Schema:
    paths: dict[str, Schema] = {}
    for path, (dialect, summary) in POSTS.items():
        content = {"application/json": {"schema": BODIES[dialect]}}
        paths[path] = {
            "post": {**_operation(path, summary), "requestBody": {"required": True, "content": content}}
        }
    for path in LISTINGS:
        paths[path] = {"get": _operation(path, "The model, in the shape of the provider the headers name")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Polar gateway", "version": __version__},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
        "paths": paths,
    }


def _operation(path: str, summary: str) -> Schema:
    answers = {status: {"description": text, "content": _any_json()} for status, text in STATUSES.items()}
    named = {"name": "model", "in": "path", "required": True, "schema": TEXT}
    return {"summary": summary, "parameters": [named] if "{model}" in path else [], "responses": answers}


def _any_json() -> Schema:
    return {"application/json": {}, "text/event-stream": {}}
