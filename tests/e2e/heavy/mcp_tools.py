"""A server of one tool for harnesses to call, over stdin and stdout as a program, or over HTTP on loopback.

`lookup` answers with a word from its settings: the variable `ANSWER` as a program, the header
`x-answer` over HTTP. It stands in no prompt before, so a prompt that holds it has seen the tool's result.

Only the standard library is needed as a program.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

TOOL = {
    "name": "lookup",
    "description": "Looks a colour up by its number.",
    "inputSchema": {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "From one on"}},
        "required": ["number"],
    },
}


def answer(message: dict[str, Any], word: str) -> dict[str, Any] | None:
    """The reply to one message; none to a notification."""
    if "id" not in message:
        return None
    method, parameters = message["method"], message.get("params", {})
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        about = {"name": "colours", "version": "1.0.0"}
        version = parameters["protocolVersion"]
        return {
            **reply,
            "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about},
        }
    if method == "tools/list":
        return {**reply, "result": {"tools": [TOOL]}}
    if method == "tools/call":
        text = f"Colour {parameters['arguments']['number']} is {word}."
        return {**reply, "result": {"content": [{"type": "text", "text": text}], "isError": False}}
    if method == "ping":
        return {**reply, "result": {}}
    return {**reply, "error": {"code": -32601, "message": f"no method {method}"}}


@asynccontextmanager
async def over_http(delay_s: float = 0.0) -> AsyncGenerator[str]:
    """Streamable HTTP without streams, which servers may leave out; yields the address."""
    import asyncio

    from aiohttp import web

    async def post(request: web.Request) -> web.Response:
        message = await request.json()
        if message.get("method") == "initialize":
            await asyncio.sleep(delay_s)
        reply = answer(message, request.headers.get("x-answer", "unknown"))
        return web.Response(status=202) if reply is None else web.json_response(reply)

    app = web.Application()
    app.router.add_post("/mcp", post)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


def as_program() -> None:
    time.sleep(float(os.environ.get("DELAY_S", "0")))
    for line in sys.stdin:
        reply = answer(json.loads(line), os.environ.get("ANSWER", "unknown"))
        if reply is not None:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    as_program()
