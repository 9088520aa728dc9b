"""From a generation to one connection: as a stream while it grows, or whole when it is done.

Headers and the first event leave as soon as the request is admitted; heartbeats keep the harness awake while the
engine has nothing to say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from polar.gateway.calls.call_service import Exchange
from polar.gateway.calls.generation import Generation
from polar.gateway.dialects.base import (
    BrokenStream,
    ChatRequest,
    Dialect,
    Problem,
    Reply,
    ReplyHead,
    StreamEncoder,
)
from polar.gateway.http.connection import JSON, SSE, Connection
from polar.gateway.slots import OpenSlot, sealed_problem

BEFORE_CUT_S = 0.25
"""So long a client has to read why its stream is cut."""


class ClientGone(Exception):
    """Nobody is left to answer."""


class Delivery:
    """One connection that listens to a generation."""

    def __init__(self, exchange: Exchange, connection: Connection, slot: OpenSlot, generation: Generation) -> None:
        self._exchange = exchange
        self._connection = connection
        self._slot = slot
        self._generation = generation
        self._handed_over = False
        self._waiter: asyncio.Future[None] | None = None

    async def whole(self, dialect: Dialect, request: ChatRequest) -> bool:
        """True when the last byte was written to a client that was still there."""
        reply = await self._until_done()
        return await self._finish(self._connection.respond(200, dialect.reply(request, reply), {}))

    async def stream(self, dialect: Dialect, request: ChatRequest, heartbeat_s: float) -> bool:
        encoder = dialect.encoder(request, await self._until_opened())
        await self._write(self._connection.start_stream(JSON if request.array else SSE))
        try:
            return await self._follow(encoder, heartbeat_s)
        except Problem as problem:
            await self._break_off(encoder.broken(problem))
            return False

    async def _follow(self, encoder: StreamEncoder, heartbeat_s: float) -> bool:
        generation, sent, written = self._generation, 0, time.monotonic()
        data, begun = encoder.start(), False
        while True:
            said = generation.deltas[sent:]
            sent += len(said)
            data += b"".join(map(encoder.delta, said))
            if generation.reply is not None:
                return await self._finish(self._connection.finish_stream(data + encoder.end(generation.reply)))
            if generation.problem is not None and begun:
                raise generation.problem
            if not data and begun:
                left_s = written + heartbeat_s - time.monotonic()
                if left_s > 0 and await self._wait_for(generation.news, left_s):
                    continue
                data = encoder.heartbeat()
            await self._write(self._connection.write(data))
            data, begun, written = b"", True, time.monotonic()

    async def _break_off(self, broken: BrokenStream) -> None:
        if broken.clean:
            await self._written(self._connection.finish_stream(broken.last))
            return
        if broken.last:
            await self._write(self._connection.write(broken.last))
            # A client that sees the break at once may throw away what it has not read yet.
            await self._wait_for(asyncio.get_running_loop().create_future(), BEFORE_CUT_S)
        raise ClientGone  # a body without an end cuts the connection

    async def _until_done(self) -> Reply:
        while not self._generation.done:
            await self._wait_for(self._generation.ended)
        if self._generation.problem is not None:
            raise self._generation.problem
        assert self._generation.reply is not None
        return self._generation.reply

    async def _until_opened(self) -> ReplyHead:
        """Waits until nothing can refuse the request any more, and a moment longer for the engine's first word."""
        generation = self._generation
        while not generation.opened:
            await self._wait_for(generation.news)
        if generation.problem is not None:
            raise generation.problem
        assert generation.head is not None
        return generation.head

    async def _wait_for(self, change: asyncio.Future[None], limit_s: float | None = None) -> bool:
        """False when the time is up. Raises when there is nobody to go on for."""
        loop = asyncio.get_running_loop()
        sources = (change, self._connection.watch(), self._slot.sealing)
        # `asyncio.wait` on three futures costs several times as much, and a stream waits for each of its flushes.
        waiter = self._waiter = loop.create_future()
        timer = None if limit_s is None else loop.call_later(limit_s, self._wake)
        for source in sources:
            source.add_done_callback(self._wake)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            for source in sources:
                source.remove_done_callback(self._wake)
        if self._slot.sealed:
            raise sealed_problem()
        if self._connection.client_gone:
            raise ClientGone
        return change.done()

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _finish(self, writing: Coroutine[None, None, bool]) -> bool:
        """The terminal bytes, and word of them in the journal. Sealing waits for the word, because a harness that
        has its last reply ends, and its session is read as soon as it is sealed; for the bytes it does not."""
        with self._slot.serving(self._generation):
            if not self._connection.may_block:
                return await self._last(writing)
            last = asyncio.create_task(self._last(writing))
            try:
                await asyncio.wait([last, self._slot.sealing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not self._handed_over:
                    last.cancel()
                await asyncio.wait([last])
        return not last.cancelled() and last.result()

    async def _last(self, writing: Coroutine[None, None, bool]) -> bool:
        """In the same step as the end is written the reply counts as handed over: a request that follows at once
        is not taken for a retry."""
        written = await writing
        if written:
            self._handed_over = True
            self._slot.forget(self._generation)
            self._exchange.delivered(self._slot, self._generation)
        return written

    async def _write(self, writing: Coroutine[None, None, bool]) -> None:
        if not await self._written(writing):
            raise ClientGone

    async def _written(self, writing: Coroutine[None, None, bool]) -> bool:
        """What `writing` says, or False when the slot is sealed first: a client that does not read holds a write
        up, and nothing may hold sealing up."""
        if not self._connection.may_block:
            return await writing
        write = asyncio.create_task(writing)
        try:
            await asyncio.wait([write, self._slot.sealing], return_when=asyncio.FIRST_COMPLETED)
            return write.done() and write.result()
        finally:
            write.cancel()
