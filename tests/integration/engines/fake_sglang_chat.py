"""SGLang's chat route over the toy model, written from its source as the other routes are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from fake_sglang import CONTEXT_TOKENS, FakeSglang
from toy_chat import Step, TemplateRefusal, asked_for, rendered, steps
from toy_model import NoSuchSchema


@dataclass
class FakeSglangChat(FakeSglang):
    reports_ids: bool = True
    """As from 0.5.13 on."""
    weight_versions: list[dict[str, Any]] | None = None
    """By token, as a server that keeps them would tell."""
    aborts: bool = False
    """Ends each reply as if it were aborted."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/detokenize", self._detokenize)
        return app

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["skip_special_tokens"] is False
        return web.json_response({"text": self.vocabulary.decode(body["tokens"]), "max_model_len": CONTEXT_TOKENS})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if body["stream"] and body.get("return_meta_info"):
            return _refused("return_meta_info is not supported with streaming. Please set stream=false")
        try:
            prompt = rendered(self.vocabulary, body)
            asked = asked_for(self.vocabulary, body, prompt, max(CONTEXT_TOKENS - len(prompt), 0))
        except (TemplateRefusal, NoSuchSchema) as error:
            return _refused(str(error))
        if (problem := _overflow(len(prompt), body.get("max_completion_tokens") or 0)) is not None:
            return _refused(problem)
        cached = self.model.cached_tokens(prompt)
        taken = list(steps(self.vocabulary, self.model, body, asked))
        await asyncio.sleep(self.step_s * len(taken))
        choice = {**self._choice(taken), **(self._meta(body, prompt, taken, cached) if self.reports_ids else {})}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(taken)}
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})

    def _choice(self, taken: list[Step]) -> dict[str, Any]:
        last = taken[-1]
        calls = [
            {"id": f"call_{n}", "index": 0, "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(last.parsed.calls)
        ]
        message = {"role": "assistant", "content": last.parsed.content, "tool_calls": calls or None}
        message["reasoning_content"] = last.parsed.reasoning or None
        matched = None if calls else last.stop or (last.sampled.id if last.sampled.finish == "stop" else None)
        return {"index": 0, "message": message, "finish_reason": self._ended(taken), "matched_stop": matched}

    def _ended(self, taken: list[Step]) -> str | None:
        if self.aborts:
            return "abort"
        finish = taken[-1].sampled.finish
        return "tool_calls" if taken[-1].parsed.calls and finish == "stop" else finish

    def _meta(self, body: dict[str, Any], prompt: list[int], taken: list[Step], cached: int) -> dict[str, Any]:
        if not body.get("return_meta_info"):
            return {}
        values = [step.sampled.processed if self.processed else step.sampled.raw for step in taken]
        ids = [step.sampled.id for step in taken]
        meta = {
            "finish_reason": {"type": self._ended(taken), "matched": None},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(taken),
            "cached_tokens": cached,
            "weight_version": self.weight_version,
            "weight_versions": self.weight_versions,
            "output_token_logprobs": [[value, i, "text"] for value, i in zip(values, ids, strict=True)],
        }
        return {"prompt_token_ids": prompt, "token_ids": ids, "meta_info": meta}


def _overflow(prompt_tokens: int, wanted: int) -> str | None:
    limit, total = CONTEXT_TOKENS, prompt_tokens + wanted
    if prompt_tokens >= limit:
        return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({limit} tokens)."
    if total > limit:
        return (
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
            f"total of {total} tokens: {prompt_tokens} tokens from the input messages and {wanted} tokens for the "
            "completion."
        )
    return None


def _refused(message: str) -> web.Response:
    return web.json_response(
        {"object": "error", "message": message, "type": "BadRequest", "code": 400}, status=400
    )
