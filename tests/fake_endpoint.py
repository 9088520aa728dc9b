"""An endpoint that speaks OpenAI's and Anthropic's API as their makers stream it, without token ids."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

KEY = "sk-endpoint-0123456789abcdef"
KEY_VARIABLE = "POLAR_TEST_ENDPOINT_KEY"
MODEL = "frontier-1"


@dataclass(frozen=True)
class Answer:
    """One reply, or an error with a status."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of tool calls."""
    cut: bool = False
    """The limit of the reply ended it."""
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict[str, Any])
    retry_after: str = ""
    breaks_off: bool = False
    """The connection is lost after the text."""
    fails_within: dict[str, Any] | None = None
    """The error that the stream ends with."""
    counts: bool = True


Answers = Sequence[Answer] | Callable[[int, dict[str, Any]], Answer]
"""In order, or a function of the number of the request (from 0) and its body."""


class FakeEndpoint:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.bodies: list[dict[str, Any]] = []
        """Of all requests after the start-up probe."""
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._chat)
        self.app.router.add_post("/v1/messages", self._messages)
        self.url = ""

    def options(self, api: str, **more: Any) -> dict[str, Any]:
        return {"url": self.url, "model": MODEL, "api": api, "api_key_env": KEY_VARIABLE, "retry_s": 0.0, **more}

    def _next(self, body: dict[str, Any]) -> Answer:
        if "Say hi." in json.dumps(body["messages"]):
            return Answer(text="Hi.")
        self.bodies.append(body)
        number = len(self.bodies) - 1
        return self._answers(number, body) if callable(self._answers) else self._answers[number]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.headers.get("authorization") != f"Bearer {KEY}":
            sent = request.headers.get("authorization", "")
            return _error(401, {"message": f"Incorrect API key provided: {sent}", "type": "invalid_request_error"})
        if body["model"] != MODEL:
            return _error(
                404, {"message": f"The model `{body['model']}` does not exist", "code": "model_not_found"}
            )
        assert body["stream"] and body["stream_options"] == {"include_usage": True}
        return await _respond(request, self._next(body), _openai_events)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.headers.get("x-api-key") != KEY:
            return _error(401, {"type": "authentication_error", "message": "invalid x-api-key"})
        if body["model"] != MODEL:
            return _error(404, {"type": "not_found_error", "message": f"model: {body['model']}"})
        assert request.headers["anthropic-version"] and body["max_tokens"] > 0 and body["stream"]
        return await _respond(request, self._next(body), _anthropic_events)


@asynccontextmanager
async def fake_endpoint(answers: Answers) -> AsyncGenerator[FakeEndpoint]:
    fake = FakeEndpoint(answers)
    async with TestServer(fake.app) as server:
        fake.url = str(server.make_url(""))
        yield fake


def _error(status: int, error: dict[str, Any], retry_after: str = "") -> web.Response:
    headers = {"retry-after": retry_after} if retry_after else {}
    return web.json_response({"type": "error", "error": error}, status=status, headers=headers)


async def _respond(
    request: web.Request, answer: Answer, events: Callable[[Answer], Iterable[str]]
) -> web.StreamResponse:
    if answer.status != 200:
        return _error(answer.status, answer.error, answer.retry_after)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in events(answer):
        await response.write(event.encode())
    if answer.breaks_off and request.transport is not None:
        request.transport.abort()
    return response


def _openai_events(answer: Answer) -> Iterable[str]:
    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"

    yield ": a comment that keeps proxies awake\n\n"
    yield event({"role": "assistant", "content": ""})
    yield from (event({"reasoning_content": part}) for part in _halves(answer.reasoning))
    yield from (event({"content": part}) for part in _halves(answer.text))
    for index, (name, arguments) in enumerate(answer.calls):
        first = {"index": index, "id": f"call_{index}", "type": "function"}
        yield event({"tool_calls": [{**first, "function": {"name": name, "arguments": ""}}]})
        for part in _halves(arguments):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if answer.breaks_off:
        return
    if answer.fails_within:
        yield f"data: {json.dumps({'error': answer.fails_within})}\n\n"
        return
    yield event({}, "length" if answer.cut else "tool_calls" if answer.calls else "stop")
    if answer.counts:
        usage = {"prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37}
        usage |= {
            "prompt_tokens_details": {"cached_tokens": 10},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def _anthropic_events(answer: Answer) -> Iterable[str]:
    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    def block(index: int, start: dict[str, Any], deltas: Iterable[dict[str, Any]]) -> Iterable[str]:
        yield event("content_block_start", index=index, content_block=start)
        yield from (event("content_block_delta", index=index, delta=delta) for delta in deltas)
        yield event("content_block_stop", index=index)

    counted = {"input_tokens": 20, "cache_read_input_tokens": 10, "output_tokens": 1} if answer.counts else {}
    yield event("message_start", message={"role": "assistant", "content": [], "usage": counted})
    yield event("ping")
    if answer.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": part} for part in _halves(answer.reasoning)]
        signature = {"type": "signature_delta", "signature": "c2ln"}
        yield from block(0, {"type": "thinking", "thinking": ""}, [*thoughts, signature])
    if answer.text:
        yield from block(
            1,
            {"type": "text", "text": ""},
            ({"type": "text_delta", "text": part} for part in _halves(answer.text)),
        )
    for index, (name, arguments) in enumerate(answer.calls):
        parts = ({"type": "input_json_delta", "partial_json": part} for part in _halves(arguments))
        yield from block(index + 2, {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}, parts)
    if answer.breaks_off:
        return
    if answer.fails_within:
        yield event("error", error=answer.fails_within)
        return
    reason = "max_tokens" if answer.cut else "tool_use" if answer.calls else "end_turn"
    usage = {"output_tokens": 7} if answer.counts else {}
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
    yield event("message_stop")


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]
