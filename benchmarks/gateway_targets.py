"""What the gateway benchmark measures, beside the stub engine: the gateway of a node, and two relays."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from gateway_parts import PartClock

from polar.config import Config
from polar.node.wiring import open_node
from polar.store.paths import RunPaths
from polar.types import CallProfile, Lease, Session, Spec, TaskRequest

PATH = "/v1/chat/completions"


class GatewayTarget:
    """The gateway as a node wires it, with the `vllm` engine at the stub's address."""

    def __init__(self, folder: Path, engine_url: str, *, timed: bool = False) -> None:
        self._paths = RunPaths(folder)
        self._engine_url = engine_url
        self._clock = PartClock()
        if timed:
            self._clock.attach()

    async def start(self, stack: AsyncExitStack) -> str:
        config = Config(engine=Spec(name="vllm", options={"url": self._engine_url}))
        self._node = await stack.enter_async_context(open_node(config, self._paths))
        return self._node.slots.base_url

    async def open(self, session_ids: list[str]) -> list[str]:
        return [await self._open(session_id) for session_id in session_ids]

    async def _open(self, session_id: str) -> str:
        session = Session(session_id=session_id, task_id="t", index=0)
        lease = Lease(session=session, task=TaskRequest(instruction="go"))
        await self._node.journal.add_session(lease)
        return (await self._node.slots.open(lease, CallProfile())).key

    async def close(self, session_ids: list[str]) -> None:
        for session_id in session_ids:
            await self._node.slots.close(session_id)

    def read(self) -> dict[str, float]:
        parts = {part: ns / 1000 for part, ns in self._clock.spent_ns.items()}
        return {**parts, "rendered": self._clock.rendered_tokens}

    async def stored_bytes(self, calls: int) -> list[int]:
        """Of the last calls, in order."""
        return _lengths(self._paths.journal, "SELECT length(body) FROM calls ORDER BY rowid DESC LIMIT ?", calls)


class RelayTarget:
    """Passes bytes on, both ways, and looks at none of them."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    async def start(self, stack: AsyncExitStack) -> str:
        self._http = await stack.enter_async_context(aiohttp.ClientSession())
        app = web.Application(client_max_size=2**25)
        app.router.add_post(PATH, self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=1)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

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

    async def stored_bytes(self, calls: int) -> list[int]:
        return [0] * calls


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

    async def stored_bytes(self, calls: int) -> list[int]:
        query = "SELECT length(request) + length(reply) FROM calls ORDER BY rowid DESC LIMIT ?"
        return _lengths(self._path, query, calls)


def _lengths(path: Path, query: str, calls: int) -> list[Any]:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return [length for (length,) in connection.execute(query, (calls,))]
    finally:
        connection.close()
