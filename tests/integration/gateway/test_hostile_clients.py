"""What a client can make the gateway hold is bounded, with a key or without."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from playbook import Gateway, OpenGateway

from polar.gateway.http import listeners
from polar.types import Slot
from raw_connections import connected, endless_heads, send_without_end
from waiting import hang_limit

ASK = {"model": "polar", "messages": [{"role": "user", "content": "Hi"}]}


def a_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def address(slot: Slot) -> tuple[str, int]:
    host, port = slot.base_url.removeprefix("http://").split(":")
    return host, int(port)


async def is_served(gateway: Gateway, slot: Slot) -> bool:
    return (await gateway.post(slot, ASK))[0] == 200


@pytest.mark.parametrize("has_listener", [True, False])
@endless_heads
async def test_a_head_without_end_is_hung_up_on(
    open_gateway: OpenGateway, has_listener: bool, beginning: bytes, piece: bytes
) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener() if has_listener else None)
    with pytest.raises(ConnectionError):
        await send_without_end(slot.base_url, beginning, piece)
    assert await is_served(gateway, slot)


async def test_a_head_in_pieces_is_no_offence(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener())
    async with connected(slot.base_url) as (reader, writer):
        writer.write(b"HEAD / HTTP/1.1\r\n")
        for number in range(20):
            writer.write(b"a%d: %s\r\n" % (number, b"x" * 1000))
            await writer.drain()
        writer.write(b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


async def test_a_session_has_so_many_connections_and_no_more(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "LISTENER_CONNECTIONS", 2)
    gateway = await open_gateway(["Hello."])
    greedy, other = (
        await gateway.open("s1", listener=a_listener()),
        await gateway.open("s2", listener=a_listener()),
    )
    async with connected(greedy.base_url) as first, connected(greedy.base_url) as second:
        assert await is_let_in(*first) and await is_let_in(*second)
        async with connected(greedy.base_url) as third:
            assert not await is_let_in(*third)
        assert await is_served(gateway, other)
    async with hang_limit(), contextlib.AsyncExitStack() as stack:
        while not await is_let_in(*await stack.enter_async_context(connected(greedy.base_url))):
            pass


async def is_let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        writer.write(b"HEAD / HTTP/1.1\r\n\r\n")
        return bool(await reader.readline())
    except ConnectionError:
        return False


async def test_bodies_under_way_at_one_listener_are_counted_together(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "LISTENER_BODIES", 2)
    gateway = await open_gateway(["Hello."], max_body_bytes=10_000)
    slot = await gateway.open(listener=a_listener())
    key = f"authorization: Bearer {slot.key}"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{key}\r\ncontent-length: 9000\r\n\r\n".encode()
    async with (
        connected(slot.base_url) as first,
        connected(slot.base_url) as second,
        connected(slot.base_url) as third,
    ):
        for _, writer in (first, second, third):
            writer.write(head + bytes(8000))
        answers = {asyncio.create_task(reader.readline()) for reader, _ in (first, second, third)}
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().split()[1] for task in done] == [b"413"]
        for task in waiting:
            task.cancel()
    async with hang_limit():
        while not await is_served(gateway, slot):
            pass


async def test_connections_end_with_the_slot(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener())
    async with connected(slot.base_url) as (reader, writer):
        assert await is_let_in(reader, writer)
        await gateway.slots.close("s1")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10_000)
