"""What a client can make the rollout server hold is bounded, with a token or without."""

from __future__ import annotations

import contextlib

import pytest
from desk import Api, OpenServer

from raw_connections import connected, endless_heads, send_without_end
from waiting import hang_limit


async def is_alive(api: Api) -> bool:
    return (await api.get("/healthz")) == {"status": "ok"}


@endless_heads
async def test_a_head_without_end_is_hung_up_on(api: Api, beginning: bytes, piece: bytes) -> None:
    with pytest.raises(ConnectionError):
        await send_without_end(api.server.base_url, beginning, piece)
    assert await is_alive(api)


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET / HT",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf",
    ],
    ids=["silent", "line", "head", "body"],
)
async def test_a_request_that_does_not_end_is_ended(open_server: OpenServer, half: bytes) -> None:
    api = await open_server(stalled_request_s=0.1)
    async with connected(api.server.base_url) as (reader, writer), hang_limit():
        writer.write(half)
        answer = await reader.read()
    assert b" 408 " in answer and b"did not arrive in time" in answer
    assert await is_alive(api)


async def test_a_long_poll_is_no_slow_request(open_server: OpenServer) -> None:
    api = await open_server(stalled_request_s=0.05)
    assert (await api.get("/v1/results?wait_s=1"))["results"] == []


async def test_half_requests_do_not_keep_others_out(open_server: OpenServer) -> None:
    api = await open_server(max_connections=4)
    async with contextlib.AsyncExitStack() as stack:
        halves = [await stack.enter_async_context(connected(api.server.base_url)) for _ in range(20)]
        for _, writer in halves:
            writer.write(b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\n")
        assert await is_alive(api)
        async with hang_limit():
            for reader, _ in halves[:16]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""


async def test_where_all_connections_are_served_a_new_one_is_refused(open_server: OpenServer) -> None:
    api = await open_server(max_connections=2)
    poll = b"GET /v1/results?wait_s=60 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer control-secret\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack, hang_limit():
        for _ in range(2):
            _, writer = await stack.enter_async_context(connected(api.server.base_url))
            writer.write(poll)
        answer = b""
        while b" 503 " not in answer:  # until the server has read both
            reader, writer = await stack.enter_async_context(connected(api.server.base_url))
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
    assert b"too many connections are open" in answer
