"""A fake Docker Engine: gives the answers that a test sets and records the calls."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from polar.runtimes.docker.container import LINK, STAT

Answer = tuple[int, Any]
FOLDER = "eyJtb2RlIjogMjE0NzQ4MzY0OH0="
"""Base64 of a `Stat` that is a folder."""


class FakeEngine:
    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/engine.sock"
        self.asked: list[str] = []
        """Method and path of each call."""
        self.bodies: dict[str, Any] = {}
        """The last body of each call."""
        self.answers: dict[str, Answer | list[Answer] | bytes] = {
            "GET /images/polar-base/json": (200, {"Config": {"Env": ["PATH=/bin"], "User": ""}}),
            "GET /containers/json": (200, []),
            "GET /info": (200, {"MemoryLimit": True}),
            "POST /containers/create": (201, {"Id": "c1"}),
            "GET /containers/c1/json": (200, {"State": {"Pid": 0}}),
            "POST /containers/c1/exec": (201, {"Id": "e1"}),
            "POST /exec/e1/start": b"",
            "GET /exec/e1/json": (200, {"Pid": 1, "ExitCode": 0}),
        }
        """Answers by method and path. Bytes are a stream that ends after them; the answers of a list come one
        after the other. Anything else gets 204 without a body."""
        self.links: dict[str, str] = {}
        """Broken links, by path. A Docker Engine that reports them also answers 404."""
        self.version: str | None = "1.41"
        self._runner = web.AppRunner(self._app())
        self._folder = folder

    async def __aenter__(self) -> FakeEngine:
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._folder / "engine.sock")).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/_ping":
            return web.Response(headers={} if self.version is None else {"Api-Version": self.version})
        call = f"{request.method} {request.path.removeprefix(f'/v{self.version}')}"
        self.asked.append(call)
        body = await request.read()
        self.bodies[call] = orjson.loads(body) if body[:1] == b"{" else body
        if request.method == "HEAD":
            return self._stat(request.query["path"])
        answer = self.answers.get(call, (204, None))
        if isinstance(answer, bytes):
            return await _stream(request, answer)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        status, told = answer
        return web.Response(status=status, body=b"" if told is None else orjson.dumps(told))

    def _stat(self, path: str) -> web.Response:
        if path not in self.links:
            return web.Response(headers={STAT: FOLDER})
        link = orjson.dumps({"mode": LINK, "linkTarget": self.links[path]})
        return web.Response(status=404, headers={STAT: base64.b64encode(link).decode()})


async def _stream(request: web.Request, content: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    response.force_close()
    await response.prepare(request)
    await response.write(content)
    return response
