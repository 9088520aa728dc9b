"""The one address of two rollout servers: passes bytes on to a server that answers, and cuts connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Balancer:
    """Takes turns, as a load balancer in front of several servers does, and asks the next if one is away."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._turn = 0
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Balancer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Breaks every connection off, also in the middle of a reply."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve((reader, writer)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, client: Stream) -> None:
        server = await self._connected()
        try:
            if server is not None:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_passed(client[0], server[1]))
                    both.create_task(_passed(server[0], client[1]))
        except* ConnectionError:
            pass
        finally:
            for stream in filter(None, (client, server)):
                stream[1].transport.abort()

    async def _connected(self) -> Stream | None:
        self._turn += 1
        for number in range(len(self._ports)):
            with suppress(OSError):
                return await asyncio.open_connection(
                    "127.0.0.1", self._ports[(self._turn + number) % len(self._ports)]
                )
        return None


async def _passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    raise ConnectionResetError("one side has closed: the other is closed too")
