"""Connections to a server that does as it is reported: kept, read in batches, and what is left when they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from polar.engines.remote import http_client
from polar.engines.remote.http_client import EAGER_REPLIES, HttpClient, HttpRequest
from polar.errors import ConfigError
from waiting import hang_limit, until

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
ASK = HttpRequest("POST", "/generate", {"X-Session": "s"}, b"{}")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawServer:
    """Reads requests, one after another on each connection, and answers each with the next of its answers."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                size = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Length" in line), 0)
                self.requests.append(head + await reader.readexactly(size))
                await self.answers.pop(0)(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def says(*parts: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(parts))
        await writer.drain()

    return answer


def says_and_leaves(*parts: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(parts))
        await writer.drain()
        writer.close()

    return answer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RawServer]:
    server = RawServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield server
    listener.close()


@pytest_asyncio.fixture
async def client(server: RawServer) -> AsyncIterator[HttpClient]:
    client = HttpClient(f"{server.url}/behind", {"Authorization": "Bearer k"}, silence_s=120)
    yield client
    await client.close()


async def whole(client: HttpClient) -> bytes:
    async with hang_limit(), client.request(ASK) as reply:
        return await reply.whole()


async def test_a_request_is_sent_with_its_headers_below_the_root_of_the_server(
    client: HttpClient, server: RawServer
) -> None:
    server.answers = [says(b"HTTP/1.1 429 Busy\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno")]
    async with hang_limit(), client.request(ASK) as reply:
        assert (reply.status, reply.headers["retry-after"], await reply.whole()) == (429, "3", b"no")
    assert server.requests[0].startswith(b"POST /behind/generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer k\r\nX-Session: s\r\nContent-Length: 2\r\n\r\n{}" in server.requests[0]


async def test_a_connection_is_used_again(client: HttpClient, server: RawServer) -> None:
    server.answers = [says(HEAD, chunk(b"one"), END), says(HEAD, chunk(b"two"), END)]
    assert [await whole(client), await whole(client)] == [b"one", b"two"]
    assert server.connections == 1


async def test_one_that_the_server_closes_is_not(client: HttpClient, server: RawServer) -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\n"
    server.answers = [says_and_leaves(closing, b"one"), says(HEAD, chunk(b"two"), END)]
    assert [await whole(client), await whole(client)] == [b"one", b"two"]
    assert server.connections == 2


async def test_a_kept_connection_that_dies_before_it_answers_costs_no_call(
    client: HttpClient, server: RawServer
) -> None:
    server.answers = [says(HEAD, chunk(b"one"), END), says_and_leaves(), says(HEAD, chunk(b"two"), END)]
    assert [await whole(client), await whole(client)] == [b"one", b"two"]
    assert server.connections == 2 and len(server.requests) == 3


async def test_a_new_connection_that_dies_is_an_error(client: HttpClient, server: RawServer) -> None:
    server.answers = [says_and_leaves()]
    with pytest.raises(ConnectionError, match="closed the connection"):
        await whole(client)
    assert len(server.requests) == 1


async def test_a_reply_that_was_begun_is_not_asked_for_again(client: HttpClient, server: RawServer) -> None:
    server.answers = [says(HEAD, chunk(b"one"), END), says_and_leaves(b"HTTP/1.1 200 O")]
    await whole(client)
    with pytest.raises(ConnectionError):
        await whole(client)
    assert len(server.requests) == 2


async def test_what_came_before_a_break_is_read_before_the_error(client: HttpClient, server: RawServer) -> None:
    server.answers = [says_and_leaves(HEAD, chunk(b"sampled"))]
    async with hang_limit(), client.request(ASK) as reply:
        await until(lambda: reply._error is not None)
        assert await reply.arrived() == b"sampled"
        with pytest.raises(ConnectionError):
            await reply.arrived()


async def test_a_reply_without_a_length_ends_with_its_connection(client: HttpClient, server: RawServer) -> None:
    server.answers = [says_and_leaves(b"HTTP/1.1 200 OK\r\n\r\n", b"all of it")]
    assert await whole(client) == b"all of it"


async def test_events_are_taken_together_and_the_end_waits_for_no_pace(
    client: HttpClient, server: RawServer
) -> None:
    more = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        await more.wait()
        for part in (b"b", b"c", b"d"):
            writer.write(chunk(part))
            await writer.drain()
        writer.write(END)

    server.answers = [answer]
    async with hang_limit(), client.request(ASK) as reply:
        assert await reply.arrived(pace_s=10_000) == b"a"
        more.set()
        assert await reply.arrived(pace_s=10_000) == b"bcd"
        assert await reply.arrived(pace_s=10_000) == b""


async def test_with_many_replies_under_way_the_bytes_wait_in_the_socket(
    client: HttpClient, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = 0
    received = http_client.HttpConnection.data_received

    def count(connection: http_client.HttpConnection, data: bytes) -> None:
        nonlocal woken
        woken += 1
        received(connection, data)

    monkeypatch.setattr(http_client.HttpConnection, "data_received", count)
    sent = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"first"))
        await sent.wait()
        for _ in range(100):
            writer.write(chunk(b"x"))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(END)

    async def read() -> bytes:
        parts: list[bytes] = []
        async with client.request(ASK) as reply:
            while data := await reply.arrived(pace_s=1.0):
                parts.append(data)
                sent.set()
        return b"".join(parts)

    count_at_once = EAGER_REPLIES + 4
    server.answers = [answer] * count_at_once
    async with hang_limit():
        replies = await asyncio.gather(*(read() for _ in range(count_at_once)))
    assert set(replies) == {b"first" + b"x" * 100}
    assert woken < 20 * count_at_once, "five events and more for each time the loop was woken"


async def test_a_silent_server_is_given_up(server: RawServer) -> None:
    hang = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await hang.wait()

    server.answers = [answer]
    client = HttpClient(server.url, {}, silence_s=0.05)
    with pytest.raises(TimeoutError, match=r"nothing for 0\.05 s"):
        await whole(client)
    hang.set()
    await client.close()


async def test_leaving_early_closes_the_connection(client: HttpClient, server: RawServer) -> None:
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        try:
            await reader.read()
        except ConnectionError:
            pass
        gone.set()

    server.answers = [answer]
    async with hang_limit():
        async with client.request(ASK) as reply:
            assert await reply.arrived() == b"a"
        await gone.wait()


async def test_an_unrequested_reply_ends_the_connection(client: HttpClient, server: RawServer) -> None:
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
    server.answers = [says(HEAD, chunk(b"one"), END, stray), says(HEAD, chunk(b"two"), END)]
    assert [await whole(client), await whole(client)] == [b"one", b"two"]
    assert server.connections == 2


async def test_what_is_not_http_is_an_error(client: HttpClient, server: RawServer) -> None:
    server.answers = [says(b"220 mail.example ESMTP\r\n")]
    with pytest.raises(ConnectionError, match="not HTTP"):
        await whole(client)


async def test_a_header_is_one_line(server: RawServer) -> None:
    client = HttpClient(server.url, {"Authorization": "Bearer k\r\nX-Other: 1"}, silence_s=5)
    with pytest.raises(ConfigError, match="Authorization"):
        await whole(client)
    assert server.requests == []


async def test_nothing_is_sent_once_it_is_closed(client: HttpClient, server: RawServer) -> None:
    await client.close()
    with pytest.raises(ConnectionError, match="stopped"):
        await whole(client)
