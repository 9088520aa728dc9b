"""vLLM's routes over a toy model, in the shapes that vLLM 0.32 was seen to answer with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web
from toy_model import END_ID, Asked, NoSuchSchema, Sampled, ToyModel, instance_of

from polar.tokens.renderers.gguf_vocabulary import Vocabulary

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONTEXT_TOKENS = 768
MODEL = {"id": "toy", "root": "/weights/toy", "parent": None, "max_model_len": CONTEXT_TOKENS}
ADAPTER = {"id": "toy-lora", "root": "/weights/lora", "parent": "toy", "max_model_len": CONTEXT_TOKENS}


@dataclass
class FakeVllm:
    vocabulary: Vocabulary
    scale_out: bool = True
    processed: bool = False
    scores: bool = True
    models: list[dict[str, Any]] = field(default_factory=lambda: [MODEL, ADAPTER])
    versions: list[str] = field(default_factory=lambda: ["default"])
    """Each samples one token, the last of them all that follow."""
    model: ToyModel = field(default_factory=ToyModel)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    step_s: float = 0.0
    instead: Handler | None = None
    """Answers every stream in place of the model."""
    abandoned: int = 0
    """Replies whose client went away."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/completions", self._completions)
        return app

    async def step(self) -> None:
        """Between two tokens of a reply."""
        await asyncio.sleep(self.step_s)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.scale_out:
            return web.json_response({"detail": "Forbidden"}, status=403)
        body = await self._received(request)
        return await self._answer(request, body, body["token_ids"], body["sampling_params"], by_tokens=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._received(request)
        assert body["add_special_tokens"] is False and body["return_token_ids"] is True
        return await self._answer(request, body, body["prompt"], body, by_tokens=False)

    async def _received(self, request: web.Request) -> dict[str, Any]:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return body

    async def _answer(
        self,
        request: web.Request,
        body: dict[str, Any],
        prompt: list[int],
        knobs: dict[str, Any],
        *,
        by_tokens: bool,
    ) -> web.StreamResponse:
        if not body.get("stream"):
            return self._scored(prompt, knobs, by_tokens=by_tokens)
        if self.instead is not None:
            return await self.instead(request)
        try:
            asked = self._asked(prompt, knobs)
        except NoSuchSchema as error:
            return web.json_response({"error": {"message": str(error), "code": 400}}, status=400)
        cached = self.model.cached_tokens(prompt)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for count, sampled in enumerate(self.model.reply(asked), 1):
                choice = self._choice(sampled, by_tokens=by_tokens)
                if by_tokens and sampled.finish:
                    choice["weight_versions"] = self._weight_versions(count)
                await _say(response, {"choices": [choice]})
                await self.step()
        except (ConnectionResetError, asyncio.CancelledError):
            self.abandoned += 1
            raise
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}
        await _say(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _asked(self, prompt: list[int], knobs: dict[str, Any]) -> Asked:
        forced = None
        if schema := knobs.get("structured_outputs"):
            text = instance_of(schema["json"], Random(knobs["seed"]))
            forced = [*self.vocabulary.encode(text), END_ID]
        stop_ids = frozenset(knobs["stop_token_ids"])
        return Asked(prompt, knobs["max_tokens"], knobs["temperature"], knobs["seed"], stop_ids, forced)

    def _choice(self, sampled: Sampled, *, by_tokens: bool) -> dict[str, Any]:
        value = sampled.processed if self.processed else sampled.raw
        named = {"token_id": sampled.id, "logprob": value, "rank": 1, "top_logprobs": []}
        listed = {"tokens": [f"token_id:{sampled.id}"], "token_logprobs": [value]}
        choice: dict[str, Any] = {"index": 0, "token_ids": [sampled.id], "finish_reason": sampled.finish}
        choice["logprobs"] = {"content": [named]} if by_tokens else listed
        return choice

    def _weight_versions(self, count: int) -> list[dict[str, Any]]:
        spans = [{"version": name, "start": n, "end": n + 1} for n, name in enumerate(self.versions)]
        return [*spans[:-1], {**spans[-1], "end": count}]

    def _scored(self, prompt: list[int], knobs: dict[str, Any], *, by_tokens: bool) -> web.Response:
        if "prompt_logprobs" not in knobs:
            return web.json_response({"choices": [{"index": 0, "token_ids": [5], "finish_reason": "length"}]})
        if not self.scores:
            return web.json_response({"error": {"message": "no prompt_logprobs here", "code": 400}}, status=400)
        found = [
            {str(i): {"logprob": self.model.logprob(prompt[:n], i), "rank": 1}} if n else None
            for n, i in enumerate(prompt)
        ]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if by_tokens:
            return web.json_response({"choices": [choice], "prompt_logprobs": found})
        return web.json_response({"choices": [{**choice, "prompt_logprobs": found}]})


async def _say(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
