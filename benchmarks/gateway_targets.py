"""What the gateway benchmark measures, each in a process of its own: the gateway, two relays, a stub upstream.

A target answers commands on a pipe: `open` gives keys of new sessions, `close` ends them, `read` gives what the
process has spent. A process that waits for a command spends nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp import web
from gateway_parts import PartClock
from gateway_traffic import REPLY, CannedEngine

from polar.config import GatewayConfig
from polar.gateway.app import GatewayApp, GatewayServer
from polar.gateway.dialects.base import ChatRequest, Reply, ReplyHead
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.exchange import Exchange
from polar.gateway.policy import PolicyGate
from polar.gateway.slots import SlotTable
from polar.gateway.token_mode import TokenMode
from polar.store.journal import Journal
from polar.tokens.reading import message_of
from polar.tokens.smollm2 import SmolLM2Renderer
from polar.tokens.tool_calls import parse_tool_calls
from polar.types import CallProfile, Delta, Lease, Session, TaskRequest, ToolCall

PATH = "/v1/chat/completions"


class Target(Protocol):
    async def start(self, stack: AsyncExitStack) -> str:
        """Serves; the URL it listens at."""
        ...

    async def open(self, session_ids: list[str]) -> list[str]: ...

    async def close(self, session_ids: list[str]) -> None: ...

    def read(self) -> dict[str, float]: ...

    def stored_bytes(self) -> list[int]:
        """Of each call, in order."""
        ...


class GatewayTarget:
    """The gateway as a node wires it, with an engine that costs nothing."""

    def __init__(self, folder: Path, *, timed: bool) -> None:
        self._path = folder / "journal.db"
        self._clock = PartClock()
        if timed:
            self._clock.attach()

    async def start(self, stack: AsyncExitStack) -> str:
        renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
        await renderer.load()
        vocabulary = renderer._vocabulary  # pyright: ignore[reportPrivateUsage]
        self._engine = CannedEngine(vocabulary, renderer.stop_ids[0])
        self._journal = await stack.enter_async_context(await Journal.open(self._path))
        info = await self._engine.start()
        self._slots = SlotTable(self._journal, "polar", info.context_tokens)
        mode = TokenMode(renderer, self._engine, info)
        exchange = Exchange(mode, PolicyGate(), info, self._journal, "polar")
        server = GatewayServer(GatewayApp(self._slots, exchange, GatewayConfig()), GatewayConfig())
        await server.start()
        stack.push_async_callback(server.stop)
        return server.base_url

    async def open(self, session_ids: list[str]) -> list[str]:
        return [await self._open(session_id) for session_id in session_ids]

    async def _open(self, session_id: str) -> str:
        session = Session(session_id=session_id, task_id="t", index=0)
        lease = Lease(session=session, task=TaskRequest(instruction="go"))
        await self._journal.add_session(lease)
        return (await self._slots.open(lease, CallProfile())).key

    async def close(self, session_ids: list[str]) -> None:
        for session_id in session_ids:
            await self._slots.close(session_id)

    def read(self) -> dict[str, float]:
        parts = {part: ns / 1000 for part, ns in self._clock.spent_ns.items()}
        rendered = self._clock.rendered_tokens
        return {**parts, "engine": self._engine.spent_ns / 1000, "rendered": rendered}

    def stored_bytes(self) -> list[int]:
        return _lengths(self._path, "SELECT length(body) FROM calls ORDER BY rowid")


class RelayTarget:
    """Passes bytes on, both ways, and looks at none of them."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    async def start(self, stack: AsyncExitStack) -> str:
        self._http = await stack.enter_async_context(aiohttp.ClientSession())
        return await _serve(self._handle, stack)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: request.headers[name] for name in ("authorization", "content-type")}
        async with self._http.post(self._upstream + PATH, data=body, headers=headers) as upstream:
            if upstream.content_type == "application/json":
                reply = await upstream.read()
                self.keep(body, reply)
                return web.Response(body=reply, content_type="application/json")
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            parts: list[bytes] = []
            async for part in upstream.content.iter_any():
                parts.append(part)
                await response.write(part)
            self.keep(body, b"".join(parts))  # before the end of the reply, as the gateway does it
            await response.write_eof()
            return response

    def keep(self, body: bytes, reply: bytes) -> None:
        pass

    async def open(self, session_ids: list[str]) -> list[str]:
        return session_ids

    async def close(self, session_ids: list[str]) -> None:
        pass

    def read(self) -> dict[str, float]:
        return {}

    def stored_bytes(self) -> list[int]:
        return []


class RecordingRelayTarget(RelayTarget):
    """Also parses the request and inserts one row for each call, on its event loop, which is the cheapest way."""

    def __init__(self, upstream: str, folder: Path) -> None:
        super().__init__(upstream)
        self._path = folder / "relay.db"
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE calls (model TEXT, messages INTEGER, request BLOB, reply BLOB)")

    def keep(self, body: bytes, reply: bytes) -> None:
        data = orjson.loads(body)
        row = (data["model"], len(data["messages"]), body, reply)
        self._db.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", row)

    def stored_bytes(self) -> list[int]:
        return _lengths(self._path, "SELECT length(request) + length(reply) FROM calls ORDER BY rowid")


class StubUpstream(RelayTarget):
    """Stands for a provider: the same reply to every call, in as many writes as the gateway makes of it."""

    def __init__(self) -> None:
        message = parse_tool_calls(REPLY)
        calls = (Delta(tool_call=ToolCall(call.name, call.arguments, "call_1")) for call in message.tool_calls)
        deltas = (Delta(content=message.content), *calls)
        head = ReplyHead("1", 0, "polar", 10_000)
        reply = Reply(head, message_of(deltas), deltas, "tool_calls", 64, 9_000)
        dialect, request = OpenAIChat(), ChatRequest(messages=(), stream=True, include_usage=True)
        encoder = dialect.encoder(request, head)
        self._plain = dialect.reply(request, reply)
        self._stream = (encoder.start(), b"".join([*map(encoder.delta, deltas), encoder.end(reply)]))

    async def start(self, stack: AsyncExitStack) -> str:
        return await _serve(self._handle, stack)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not orjson.loads(await request.read()).get("stream"):
            return web.Response(body=self._plain, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in self._stream:
            await response.write(part)
            await asyncio.sleep(0)
        await response.write_eof()
        return response


async def _serve(handler: Any, stack: AsyncExitStack) -> str:
    app = web.Application(client_max_size=2**25)
    app.router.add_post(PATH, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=1)
    await site.start()
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


def _lengths(path: Path, query: str) -> list[int]:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return [length for (length,) in connection.execute(query)]
    finally:
        connection.close()


async def _answer(make: Any, arguments: tuple[Any, ...], options: dict[str, Any], pipe: Any) -> None:
    target: Target = make(*arguments, **options)
    async with AsyncExitStack() as stack:
        pipe.send(await target.start(stack))
        while (command := await asyncio.to_thread(pipe.recv)) is not None:
            name, argument = command
            if name == "read":
                pipe.send({"cpu": time.process_time_ns() / 1000, **target.read()})
            elif name == "stored_bytes":
                pipe.send(target.stored_bytes())
            else:
                pipe.send(await getattr(target, name)(argument))


def _run(make: Any, arguments: tuple[Any, ...], options: dict[str, Any], pipe: Any) -> None:
    asyncio.run(_answer(make, arguments, options, pipe))


class Process:
    """A target in another process, from the side of who asks."""

    def __init__(self, make: Any, *arguments: Any, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(make, arguments, options, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.url: str = self._pipe.recv()

    def ask(self, name: str, argument: Any = None) -> Any:
        self._pipe.send((name, argument))
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(10)
