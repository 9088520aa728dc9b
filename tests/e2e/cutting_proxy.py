"""A network that breaks: passes bytes between harness and gateway, and cuts a reply in its middle when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    def __init__(self, cut_replies: int, after_bytes: int) -> None:
        self._left = cut_replies
        self._after_bytes = after_bytes
        self.cuts = 0
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def __call__(self, base_url: str) -> AsyncGenerator[str]:
        self._target = urlsplit(base_url)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target.hostname and self._target.port
        to_gateway = await asyncio.open_connection(self._target.hostname, self._target.port)
        upward = asyncio.create_task(self._pass_on(reader, to_gateway[1]))
        try:
            await self._pass_back(to_gateway[0], writer)
        except ConnectionError:
            pass
        finally:
            upward.cancel()
            for end in (writer, to_gateway[1]):
                end.transport.abort()
            await asyncio.gather(upward, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await reader.read(65536):
            if self._left and passed + len(data) > self._after_bytes:
                self._left -= 1
                self.cuts += 1
                writer.write(data[: self._after_bytes - passed])
                await writer.drain()
                return
            passed += len(data)
            writer.write(data)
            await writer.drain()
