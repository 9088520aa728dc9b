"""From a call to one connection: as a stream while the reply grows, or whole at its end.

A stream's headers and first event leave as soon as the call is admitted; heartbeats keep the connection open while
the engine is silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from polar.config import GatewayConfig
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.model_call import ModelCall
from polar.gateway.dialects.base import BrokenStream, ChatRequest, Dialect, Reply, StreamEncoder
from polar.gateway.dialects.problems import Problem
from polar.gateway.http.connection import JSON, SSE, Connection
from polar.gateway.slots import sealed_problem

BEFORE_CUT_S = 0.25
"""How long a client has to read the error before its stream is cut."""


class ClientGone(Exception):
    """The client left before its reply was complete."""


class Delivery:
    """One connection that listens to a call."""

    def __init__(self, service: CallService, connection: Connection, call: ModelCall) -> None:
        self._service = service
        self._connection = connection
        self._call = call
        self._slot = call.slot
        self._handed_over = False
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, dialect: Dialect, request: ChatRequest, config: GatewayConfig) -> bool:
        """True if the last byte was written to a client that was still there. `request` is this connection's: a
        retry may want the reply of a streamed call whole."""
        if request.stream:
            return await self._stream(dialect, request, config.heartbeat_s)
        reply = await self._until_done()
        return await self._finish(self._connection.respond(200, dialect.reply(request, reply), {}))

    async def _stream(self, dialect: Dialect, request: ChatRequest, heartbeat_s: float) -> bool:
        encoder = dialect.encoder(request, await self._until_opened())
        await self._write(self._connection.start_stream(JSON if request.array else SSE))
        try:
            return await self._follow(encoder, heartbeat_s)
        except Problem as problem:
            await self._break_off(encoder.broken(problem))
            return False

    async def _follow(self, encoder: StreamEncoder, heartbeat_s: float) -> bool:
        call, sent, written = self._call, 0, time.monotonic()
        data, begun = encoder.start(), False
        while True:
            deltas = call.deltas[sent:]
            sent += len(deltas)
            data += b"".join(map(encoder.delta, deltas))
            if call.replied and call.reply is not None:
                return await self._finish(self._connection.finish_stream(data + encoder.end(call.reply)))
            if call.problem is not None and begun:
                raise call.problem
            if not data and begun:
                left_s = written + heartbeat_s - time.monotonic()
                if left_s > 0 and await self._wait_for(call.news, left_s):
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
            # A client that sees the cut at once may drop what it has not read yet.
            await self._wait_for(asyncio.get_running_loop().create_future(), BEFORE_CUT_S)
        raise ClientGone  # a body without an end cuts the connection

    async def _until_done(self) -> Reply:
        while not self._call.done:
            await self._wait_for(self._call.ended)
        if self._call.problem is not None:
            raise self._call.problem
        assert self._call.reply is not None
        return self._call.reply

    async def _until_opened(self) -> Reply:
        """Waits for the end of admission, and a moment longer for the engine's first token."""
        call = self._call
        while not call.opened:
            await self._wait_for(call.news)
        if call.problem is not None:
            raise call.problem
        assert call.reply is not None
        return call.reply

    async def _wait_for(self, change: asyncio.Future[None], limit_s: float | None = None) -> bool:
        """False when the time is up. Raises when the client or the session is gone."""
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
        """Writes the terminal bytes and marks the reply as received. Sealing waits for the mark, because a harness
        ends when it has its last reply, and its session is read as soon as it is sealed. It does not wait for a
        client that does not read."""
        with self._slot.serving(self._call):
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
        """Forgets the call in the same step as its end is written, so that the next request is not taken for a
        retry."""
        written = await writing
        if written:
            self._handed_over = True
            self._slot.forget(self._call)
            self._service.delivered(self._call)
        return written

    async def _write(self, writing: Coroutine[None, None, bool]) -> None:
        if not await self._written(writing):
            raise ClientGone

    async def _written(self, writing: Coroutine[None, None, bool]) -> bool:
        """The result of `writing`, or False when the slot is sealed first: a client that does not read must not
        hold up sealing."""
        if not self._connection.may_block:
            return await writing
        write = asyncio.create_task(writing)
        try:
            await asyncio.wait([write, self._slot.sealing], return_when=asyncio.FIRST_COMPLETED)
            return write.done() and write.result()
        finally:
            write.cancel()
