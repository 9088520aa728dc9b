"""SGLang's routes over a toy model. SGLang needs a GPU, so this stands in for it: written from its documented
shapes and from reading its source (0.5.23), never compared with a running server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web
from toy_model import END_ID, Asked, NoSuchSchema, ToyModel, instance_of

from polar.tokens.renderers.gguf_vocabulary import Vocabulary

CONTEXT_TOKENS = 768


@dataclass
class FakeSglang:
    vocabulary: Vocabulary
    incremental: bool = False
    """As with `--incremental-streaming-output`; else each event repeats all that came before it."""
    processed: bool = True
    """As by default; raw with SGLANG_RETURN_ORIGINAL_LOGPROB=1."""
    old_paths: bool = False
    reports_limits: bool = True
    is_generation: bool = True
    weight_version: str = "default"
    step_s: float = 0.0
    abort_s: float = 0.0
    aborts_after: int | None = None
    """Ends a reply after so many tokens, as for a weight update."""
    model: ToyModel = field(default_factory=ToyModel)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        prefix = "/get_" if self.old_paths else "/"
        app.router.add_get(f"{prefix}model_info", self._model_info)
        app.router.add_get(f"{prefix}server_info", self._server_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        return app

    async def step(self) -> None:
        """Between two tokens of a reply."""
        await asyncio.sleep(self.step_s)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/weights/toy", "is_generation": self.is_generation})

    async def _server_info(self, request: web.Request) -> web.Response:
        limits = {"max_req_input_len": CONTEXT_TOKENS, "max_running_requests": 3} if self.reports_limits else {}
        return web.json_response({"version": "0.5.23", **limits, "internal_states": []})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "toy", "max_model_len": CONTEXT_TOKENS + 6}]})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        await asyncio.sleep(self.abort_s)
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if not body["stream"]:
            return self._scored(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            asked = self._asked(body)
        except NoSuchSchema as error:
            refused = {"type": "abort", "message": str(error), "status_code": 400, "err_type": "BadRequestError"}
            await self._say(response, [], {"finish_reason": refused, "completion_tokens": 0})
        else:
            await self._reply(response, asked)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _reply(self, response: web.StreamResponse, asked: Asked) -> None:
        cached = self.model.cached_tokens(asked.prompt)
        reports: list[list[Any]] = []
        for sampled in self.model.reply(asked):
            reports.append([sampled.processed if self.processed else sampled.raw, sampled.id, None])
            meta = {
                "finish_reason": {"type": sampled.finish} if sampled.finish else None,
                "prompt_tokens": len(asked.prompt),
                "completion_tokens": len(reports),
                "cached_tokens": cached,
                "weight_version": self.weight_version,
            }
            await self._say(response, reports[-1:] if self.incremental else reports, meta)
            await self.step()
            if len(reports) == self.aborts_after:
                aborted = {
                    "finish_reason": {"type": "abort", "message": "Aborted"},
                    "completion_tokens": len(reports),
                }
                return await self._say(response, reports[-1:] if self.incremental else reports, aborted)

    async def _say(self, response: web.StreamResponse, reports: list[list[Any]], meta: dict[str, Any]) -> None:
        meta = {**meta, "output_token_logprobs": reports}
        event = {"text": "", "output_ids": [report[1] for report in reports], "meta_info": meta}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _asked(self, body: dict[str, Any]) -> Asked:
        knobs = body["sampling_params"]
        seed, forced = knobs.get("sampling_seed"), None
        if "json_schema" in knobs:
            text = instance_of(json.loads(knobs["json_schema"]), Random(seed))
            forced = [*self.vocabulary.encode(text), END_ID]
        stop_ids = frozenset(knobs["stop_token_ids"])
        return Asked(body["input_ids"], knobs["max_new_tokens"], knobs["temperature"], seed, stop_ids, forced)

    def _scored(self, body: dict[str, Any]) -> web.Response:
        ids, start = body["input_ids"], body["logprob_start_len"]
        reports: list[list[Any]] = [[None, ids[start], None]]
        for position in range(start + 1, len(ids)):
            reports.append([self.model.logprob(ids[:position], ids[position]), ids[position], None])
        meta = {"completion_tokens": 1, "finish_reason": {"type": "length"}, "input_token_logprobs": reports}
        sampled = {"output_ids": [5], "output_token_logprobs": [[-1.0, 5, None]]}
        return web.json_response({"output_ids": [5], "meta_info": {**meta, **sampled}})
