"""What leaves the gateway for one reply: how many writes, each of which is a system call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from polar.gateway.http.connection import TRANSPORT, Connection, GatewayHttp
from waiting import hang_limit

KEPT = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
CLOSED = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Written(asyncio.Transport):
    """A client that reads everything, or one that is found to be gone by the first write to it."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.http: GatewayHttp | None = None
        self._gone = gone
        self._closing = False

    def write(self, data: Any) -> None:
        if data:
            self.writes.append(data)
        if self._gone:
            self.close()

    def close(self) -> None:
        if not self._closing and self.http is not None:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.http.connection_lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def served(
    transport: Written, request: bytes, answer: Callable[[Connection], Awaitable[bool]]
) -> tuple[list[bytes], bool]:
    """What was written in answer to a request, and whether the answer counts as received."""
    received: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = Connection(receive, send, scope[TRANSPORT])
        await connection.read_body(100)
        connection.watch()
        received.set_result(await answer(connection))

    config = uvicorn.Config(app, http=GatewayHttp, log_level="critical", lifespan="off")
    config.load()
    transport.http = GatewayHttp(config=config, server_state=ServerState(), app_state={})
    transport.http.connection_made(transport)
    transport.http.data_received(request)
    async with hang_limit():
        return transport.writes, await received


async def whole(connection: Connection) -> bool:
    return await connection.respond(200, b"hello", {})


async def streamed(connection: Connection) -> bool:
    await connection.start_stream()
    await connection.write(b"hel")
    return await connection.finish_stream(b"lo")


async def test_a_whole_reply_is_one_write() -> None:
    (only,), received = await served(Written(), KEPT, whole)
    assert only.startswith(b"HTTP/1.1 200 OK\r\n") and only.endswith(b"\r\n\r\nhello") and received


async def test_the_head_of_a_stream_leaves_with_its_first_bytes_and_its_end_with_the_last() -> None:
    (first, last), received = await served(Written(), KEPT, streamed)
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"3\r\nhel\r\n")
    assert last == b"2\r\nlo\r\n0\r\n\r\n" and received


@pytest.mark.parametrize("answer", [whole, streamed])
async def test_a_connection_that_the_server_closes_is_not_a_client_that_left(answer: Any) -> None:
    writes, received = await served(Written(), CLOSED, answer)
    assert b"hel" in b"".join(writes) and received


@pytest.mark.parametrize("request_bytes", [KEPT, CLOSED])
@pytest.mark.parametrize("answer", [whole, streamed])
async def test_a_client_found_gone_by_the_last_write_has_received_nothing(
    answer: Any, request_bytes: bytes
) -> None:
    _, received = await served(Written(gone=True), request_bytes, answer)
    assert not received
