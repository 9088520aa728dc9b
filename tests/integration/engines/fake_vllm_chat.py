"""vLLM's chat routes over the toy model, in the shapes that vLLM 0.32 was seen to answer with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from fake_vllm import CONTEXT_TOKENS, FakeVllm
from toy_chat import ParsedReply, Step, TemplateRefusal, asked_for, rendered, steps
from toy_model import NoSuchSchema


@dataclass
class FakeVllmChat(FakeVllm):
    reads_calls: bool = True
    """As with `--enable-auto-tool-choice`."""
    refuses_sums: bool = False
    """As older servers do, where prompt and reply together would not fit."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        return app

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._received(request)
        if "prompt" in body:
            return web.json_response({"tokens": self.vocabulary.encode(body["prompt"])})
        assert body["add_generation_prompt"] is True
        try:
            ids = rendered(self.vocabulary, body)
        except TemplateRefusal as error:
            return _refused(str(error))
        return web.json_response({"count": len(ids), "max_model_len": CONTEXT_TOKENS, "tokens": ids})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": self.vocabulary.decode((await request.json())["tokens"])})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._received(request)
        if self.instead is not None:
            return await self.instead(request)
        if body.get("tools") and not self.reads_calls:
            return _refused(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        try:
            prompt = rendered(self.vocabulary, body)
        except TemplateRefusal as error:
            return _refused(str(error))
        wanted = body.get("max_completion_tokens") or 0
        if len(prompt) >= CONTEXT_TOKENS or (self.refuses_sums and len(prompt) + wanted > CONTEXT_TOKENS):
            return _refused(f"This model's maximum context length is {CONTEXT_TOKENS} tokens. Please reduce it.")
        if wanted > CONTEXT_TOKENS:
            return _refused(
                f"max_completion_tokens={wanted} cannot be greater than max_model_len={CONTEXT_TOKENS}."
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._chat_events(response, body, prompt)
        except (ConnectionResetError, asyncio.CancelledError):
            self.abandoned += 1
            raise
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _chat_events(self, response: web.StreamResponse, body: dict[str, Any], prompt: list[int]) -> None:
        try:
            asked = asked_for(self.vocabulary, body, prompt, CONTEXT_TOKENS - len(prompt))
        except NoSuchSchema as error:
            return await _say(
                response, {"error": {"message": f"no grammar of the json schema: {error}", "code": 400}}
            )
        cached, count, before = self.model.cached_tokens(prompt), 0, ParsedReply()
        first = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        await _say(response, {"choices": [first], "prompt_token_ids": prompt, "prompt_text": None})
        for step in steps(self.vocabulary, self.model, body, asked):
            await _say(response, {"choices": [self._chat_choice(step, before)]})
            before, count = step.parsed, count + 1
            await asyncio.sleep(self.step_s)
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        await _say(response, {"choices": [], "usage": usage})

    def _chat_choice(self, step: Step, before: ParsedReply) -> dict[str, Any]:
        sampled = step.sampled
        value = sampled.processed if self.processed else sampled.raw
        named = {"token": f"token_id:{sampled.id}", "logprob": value, "bytes": None, "top_logprobs": []}
        choice: dict[str, Any] = {"index": 0, "token_ids": [sampled.id], "logprobs": {"content": [named]}}
        choice["delta"] = _delta(step.parsed, before)
        if sampled.finish == "stop" and step.parsed.calls:
            return {**choice, "finish_reason": "tool_calls", "stop_reason": None}
        return {**choice, "finish_reason": sampled.finish, "stop_reason": step.stop}


def _delta(parsed: ParsedReply, before: ParsedReply) -> dict[str, Any]:
    """What is new; a call in three fragments."""
    delta: dict[str, Any] = {}
    if reasoning := parsed.reasoning[len(before.reasoning) :]:
        delta["reasoning"] = reasoning
    if content := parsed.content[len(before.content) :]:
        delta["content"] = content
    fragments: list[dict[str, Any]] = []
    for index in range(len(before.calls), len(parsed.calls)):
        name, arguments = parsed.calls[index]
        fragments.append({"index": index, "id": f"call-{index}", "type": "function", "function": {"name": name}})
        for part in (arguments[:3], arguments[3:]):
            fragments.append({"index": index, "function": {"arguments": part}})
    return {**delta, "content": None, "tool_calls": fragments} if fragments else delta


def _refused(message: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.json_response({"error": error}, status=400)


async def _say(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
