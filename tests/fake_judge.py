"""An OpenAI-compatible endpoint that answers as a judge does: a function of the request says what."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

MODEL = "judge-1"


@dataclass(frozen=True)
class Refusal:
    status: int
    text: str = "no"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class JudgeRequest:
    number: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def mark(self) -> str:
        found = re.search(r'"id" is "([0-9a-f]+)"', self.body["messages"][0]["content"])
        assert found
        return found[1]

    @property
    def prompt(self) -> str:
        return self.body["messages"][1]["content"]

    def verdict(self, reason: str = "well done", **scores: float) -> str:
        return json.dumps({"id": self.mark, "reason": reason, "scores": scores or {"score": 10}})


Answering = Callable[[JudgeRequest], str | Refusal]


@dataclass
class FakeJudge:
    answer: Answering
    finish_reason: str = "stop"
    requests: list[JudgeRequest] = field(default_factory=list[JudgeRequest])
    url: str = ""

    async def chat(self, request: web.Request) -> web.Response:
        asked = JudgeRequest(len(self.requests), await request.json(), dict(request.headers))
        self.requests.append(asked)
        answer = self.answer(asked)
        if isinstance(answer, Refusal):
            return web.Response(status=answer.status, text=answer.text, headers=answer.headers)
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": self.finish_reason}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return web.json_response({"model": f"{MODEL}-2026", "choices": [choice], "usage": usage})


@asynccontextmanager
async def fake_judge(answer: Answering, **more: Any) -> AsyncGenerator[FakeJudge]:
    fake = FakeJudge(answer, **more)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.chat)
    async with TestServer(app) as server:
        fake.url = str(server.make_url("/v1"))
        yield fake
