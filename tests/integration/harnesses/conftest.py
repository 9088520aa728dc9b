"""Real harnesses from the npm registry, and a scripted model server for them to call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from polar.errors import HarnessError
from polar.harnesses.pi import Pi, PiOptions
from polar.harnesses.programs.install import install
from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime

HANG = "<never answers>"


class ModelServer:
    """A scripted server of the streaming Chat Completions API: each entry is a shell command for the `bash` tool
    if it begins with `$ `, else plain text. A script that has run out says "Done.". Other APIs are refused."""

    def __init__(self) -> None:
        self.script: list[str] = []
        self.used_tokens: list[int] = []
        """The usage of each reply; none after the end of the list."""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.arrived = asyncio.Condition()
        self.base_url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path != "/v1/chat/completions":
            return web.json_response({"error": {"message": "this server speaks another API"}}, status=400)
        self.requests.append(await request.json())
        self.keys.append(request.headers["Authorization"].removeprefix("Bearer "))
        reply = self.script.pop(0) if self.script else "Done."
        async with self.arrived:
            self.arrived.notify_all()
        if reply == HANG:
            await asyncio.Event().wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta, finish_reason in chunks(reply):
            await send(response, choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])
        if self.used_tokens:
            used = self.used_tokens.pop(0)
            usage = {"prompt_tokens": used, "completion_tokens": 0, "total_tokens": used}
            await send(response, choices=[], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def has_been_called(self, times: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= times)

    def instruction(self) -> str:
        """The user's messages in the first request."""
        (message,) = (m for m in self.requests[0]["messages"] if m["role"] == "user")
        return "".join(part["text"] for part in message["content"])


async def send(response: web.StreamResponse, **fields: Any) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields}
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


def chunks(reply: str) -> list[tuple[dict[str, Any], str | None]]:
    if not reply.startswith("$ "):
        return [({"role": "assistant", "content": reply}, None), ({}, "stop")]
    function = {"name": "bash", "arguments": json.dumps({"command": reply.removeprefix("$ ")})}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return [({"role": "assistant", "tool_calls": [call]}, None), ({}, "tool_calls")]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.base_url = f"http://{host}:{port}"
    yield server
    await runner.cleanup()


@pytest.fixture(scope="session")
def installed_pi() -> dict[str, Path]:
    try:
        return asyncio.run(install(Pi(PiOptions()).requirements()))
    except HarnessError as error:
        pytest.skip(f"pi cannot be installed here: {error}")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    made = LocalRuntime(LocalOptions(kill_grace_s=1))
    await made.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    yield made
    await made.stop()
