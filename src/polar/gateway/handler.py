"""The model routes: from an HTTP request to a served call, in any dialect.

Streaming or not, the order is the same: refuse what must be refused, sample, journal, send the end, and only
then say that the harness has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.datastructures import Headers

from polar.config import GatewayConfig
from polar.gateway.connection import Connection, Receive, Send
from polar.gateway.dialects.base import ChatRequest, Dialect, Problem
from polar.gateway.exchange import Admitted, Exchange
from polar.gateway.slots import OpenSlot, SlotTable, sealed_problem


def key_of(headers: Headers) -> str:
    bearer = headers.get("authorization", "")
    return bearer[7:].strip() if bearer.lower().startswith("bearer ") else headers.get("x-api-key", "")


def authenticate(slots: SlotTable, headers: Headers) -> OpenSlot:
    slot = slots.find(key_of(headers))
    if slot is None:
        raise Problem(401, "invalid_api_key", "unknown key: use the key of the session's slot")
    return slot


class _ClientGone(Exception):
    """Nobody is left to answer."""


class ModelRoute:
    """An ASGI app for one dialect's generation path."""

    def __init__(self, dialect: Dialect, slots: SlotTable, exchange: Exchange, config: GatewayConfig) -> None:
        self._dialect = dialect
        self._slots = slots
        self._exchange = exchange
        self._config = config

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        connection = Connection(receive, send)
        try:
            slot = authenticate(self._slots, Headers(scope=scope))
            if slot.sealed:
                raise sealed_problem()
            # A client that never ends its body is not yet served: sealing does not wait for it.
            body = await connection.read_body(self._config.max_body_bytes)
            with slot:
                await self._serve(slot, connection, body)
        except Problem as problem:
            error = self._dialect.error(problem)
            await connection.respond(error.status, error.body, error.headers)
        except (_ClientGone, ConnectionResetError):
            return
        finally:
            await connection.close()

    async def _serve(self, slot: OpenSlot, connection: Connection, body: bytes) -> None:
        request = self._dialect.parse(body)
        admitted = await self._exchange.admit(slot, request)
        connection.watch()
        if request.stream:
            await self._stream(slot, connection, request, admitted)
        else:
            await self._plain(slot, connection, admitted)

    async def _plain(self, slot: OpenSlot, connection: Connection, admitted: Admitted) -> None:
        sampling = asyncio.create_task(self._exchange.sample(slot, admitted))
        await self._until_sampled(slot, connection, admitted, sampling, None)
        reply = await self._exchange.commit(slot, admitted, self._dialect.name)
        if await _unless_sealed(slot, connection.respond(200, self._dialect.reply(reply), {})):
            await self._exchange.delivered(slot, reply)

    async def _stream(
        self, slot: OpenSlot, connection: Connection, request: ChatRequest, admitted: Admitted
    ) -> None:
        encoder = self._dialect.encoder(request, admitted.call_id, self._exchange.model, int(admitted.arrived))
        if not await _unless_sealed(slot, connection.start_stream(encoder.start())):
            raise _ClientGone
        sampling = asyncio.create_task(self._exchange.sample(slot, admitted))
        try:
            await self._until_sampled(slot, connection, admitted, sampling, encoder.heartbeat)
            reply = await self._exchange.commit(slot, admitted, self._dialect.name)
        except Problem as problem:
            # The status is gone already. The error event, then an end that is not clean: a harness must not take
            # a broken stream for a whole reply.
            await _unless_sealed(slot, connection.write(encoder.error(problem)))
            raise _ClientGone from problem
        rest = b"".join([*encoder.body(reply), encoder.end(reply)])
        if await _unless_sealed(slot, connection.finish_stream(rest)):
            await self._exchange.delivered(slot, reply)

    async def _until_sampled(
        self,
        slot: OpenSlot,
        connection: Connection,
        admitted: Admitted,
        sampling: asyncio.Task[None],
        heartbeat: Callable[[], bytes] | None,
    ) -> None:
        """Waits for the engine, keeping the client awake. A client that leaves or a slot that is sealed ends the
        generation, and what was sampled by then is kept as aborted."""
        waiting = {sampling, connection.watch(), slot.sealing}
        try:
            while not sampling.done():
                done, _ = await asyncio.wait(
                    waiting, timeout=self._config.heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if done or (
                    heartbeat is not None and not await _unless_sealed(slot, connection.write(heartbeat()))
                ):
                    break
        finally:
            if not sampling.done():
                sampling.cancel()
                await asyncio.wait([sampling])
        if sampling.cancelled() or sampling.exception() is not None:
            await self._exchange.abandon(slot, admitted, self._dialect.name)
        if sampling.cancelled():
            raise sealed_problem() if slot.sealed else _ClientGone()
        sampling.result()


async def _unless_sealed(slot: OpenSlot, writing: Coroutine[None, None, bool]) -> bool:
    """What `writing` says, or False when the slot is sealed first: a client that does not read holds a write up,
    and nothing may hold sealing up."""
    write = asyncio.create_task(writing)
    try:
        await asyncio.wait([write, slot.sealing], return_when=asyncio.FIRST_COMPLETED)
        return write.done() and write.result()
    finally:
        write.cancel()
