"""What a careless harness, a broken plug-in or bad timing can do to the gateway, and what it does then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from playbook import BASH_TOOL, Gateway, OpenGateway

from polar.config import GatewayConfig
from polar.engines.base import GenerateRequest, Piece
from polar.gateway.calls.threads import CallThreads
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.http.connection import AsgiMessage, Connection
from polar.gateway.http.handler import ModelRoute, Service
from polar.testing import ScriptedReply
from polar.types import Slot, logprobs, token_ids
from waiting import hang_limit, until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def raw_request(
    slot: Slot, body: bytes, *, length: int | None = None, path: str = "/v1/chat/completions"
) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {slot.key}\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


async def connect(slot: Slot) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = slot.base_url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def exchange_raw(slot: Slot, request: bytes) -> bytes:
    """Sends bytes and reads all that comes until the server is quiet or closes."""
    reader, writer = await connect(slot)
    writer.write(request)
    received = await reader.readuntil(b"\r\n\r\n")
    for line in received.lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and not request.startswith(b"HEAD"):
            received += await reader.readexactly(int(line.split(b":")[1]))
    writer.close()
    await writer.wait_closed()
    return received


class TestHttp:
    async def test_a_trailing_slash_is_another_path(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        slot = await gateway.open()
        request = raw_request(slot, orjson.dumps({"messages": HELLO}), path="/v1/chat/completions/")
        assert (await exchange_raw(slot, request)).startswith(b"HTTP/1.1 404")

    async def test_a_head_request_learns_that_somebody_is_there(self, open_gateway: OpenGateway) -> None:
        slot = await (await open_gateway([])).open()
        assert (await exchange_raw(slot, b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await exchange_raw(slot, b"HEAD /x HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 404")
        options = b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n"
        assert (await exchange_raw(slot, options)).startswith(b"HTTP/1.1 405")

    @pytest.mark.parametrize(
        ("path", "status"), [("/nowhere", b"404"), ("/%ff", b"404"), ("/v1/chat/completions", b"405")]
    )
    async def test_a_strange_host_is_no_crash(self, open_gateway: OpenGateway, path: str, status: bytes) -> None:
        slot = await (await open_gateway([])).open()
        received = await exchange_raw(slot, f"GET {path} HTTP/1.1\r\nhost: [\r\n\r\n".encode())
        assert received.startswith(b"HTTP/1.1 " + status) and b'"error"' in received

    async def test_a_key_that_is_no_text_is_unknown(self, open_gateway: OpenGateway) -> None:
        slot = await (await open_gateway([])).open()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\n"
        received = await exchange_raw(slot, head + b"content-length: 2\r\n\r\n{}")
        assert received.startswith(b"HTTP/1.1 401")

    @pytest.mark.parametrize("piece_bytes", [10_000, 64, 7])
    async def test_an_offer_of_http_2_is_an_ordinary_request(
        self, open_gateway: OpenGateway, piece_bytes: int
    ) -> None:
        """Java's HTTP client sends it with its first POST."""
        gateway = await open_gateway(["One.", "Two."])
        slot = await gateway.open()
        offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
        first = raw_request(slot, orjson.dumps({"messages": HELLO})).replace(
            b"host: x\r\n", b"host: x\r\n" + offer
        )
        second = raw_request(slot, orjson.dumps({"messages": [*HELLO, *HELLO]}))
        reader, writer = await connect(slot)
        for request, said in ((first, b"One."), (second, b"Two.")):  # one connection, kept alive
            for start in range(0, len(request), piece_bytes):
                writer.write(request[start : start + piece_bytes])
                await writer.drain()
                await asyncio.sleep(0)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            assert said in await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
        await writer.wait_closed()
        assert len(await gateway.calls()) == 2

    async def test_a_tunnel_is_refused(self, open_gateway: OpenGateway) -> None:
        slot = await (await open_gateway([])).open()
        received = await exchange_raw(slot, b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 400")

    async def test_a_body_in_chunks_is_one_body(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Fine."])
        slot = await gateway.open()
        body = orjson.dumps({"messages": HELLO})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {slot.key}\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:]))
        request = f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"
        assert (await exchange_raw(slot, request)).startswith(b"HTTP/1.1 200")

    async def test_two_requests_in_one_write_are_answered_in_order(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["One.", "Two."])
        slot = await gateway.open()
        reader, writer = await connect(slot)
        first, second = ([{"role": "user", "content": text}] for text in ("one", "two"))
        writer.write(b"".join(raw_request(slot, orjson.dumps({"messages": m})) for m in (first, second)))
        async with hang_limit():
            for text in (b"One.", b"Two."):
                await reader.readuntil(text)
        writer.close()
        await until(lambda: not gateway.slots._by_session["s1"]._active)  # pyright: ignore[reportPrivateUsage]
        assert [call.received for call in await gateway.calls()] == [True, True]

    async def test_a_request_broken_off_in_its_body_is_forgotten(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Fine."])
        slot = await gateway.open()
        _, writer = await connect(slot)
        writer.write(raw_request(slot, b"{", length=100))
        writer.close()
        await writer.wait_closed()
        assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200
        assert len(await gateway.calls()) == 1


class TestRequests:
    async def test_a_limit_is_found_behind_a_null(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["A long reply that goes on."])
        body = {"messages": HELLO, "max_completion_tokens": None, "max_tokens": 3}
        assert (await gateway.post(await gateway.open(), body))[0] == 200
        assert gateway.engine.requests[0].request.max_tokens == 3

    @pytest.mark.parametrize("place", ["message", "tools", "arguments"])
    async def test_json_that_is_nested_too_deep_is_refused(self, open_gateway: OpenGateway, place: str) -> None:
        gateway = await open_gateway(["never"])
        deep: Any = []
        for _ in range(200):
            deep = [deep]
        text = orjson.dumps(deep).replace(b"[]", b"[" * 300 + b"]" * 300)
        message = b'{"role": "user", "content": "x", "extra": %b}' % (text if place == "message" else b"0")
        if place == "arguments":
            call = b'{"function": {"name": "f", "arguments": {"a": %b}}}' % text
            message = b'{"role": "assistant", "tool_calls": [%b]}' % call
        function = b'{"name": "f", "parameters": {"a": %b}}' % (text if place == "tools" else b"0")
        body = b'{"messages": [%b], "tools": [{"function": %b}]}' % (message, function)
        status, reply, _ = await gateway.post(await gateway.open(), body)
        assert (status, reply["error"]["code"]) == (400, "invalid_request")
        assert gateway.engine.requests == []

    async def test_deep_arguments_written_as_text_are_history_like_any_other(
        self, open_gateway: OpenGateway
    ) -> None:
        gateway = await open_gateway(["Fine."])
        arguments = '{"a": ' + "[" * 300 + "]" * 300 + "}"
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "ok"}]
        assert (await gateway.post(await gateway.open(), {"messages": messages}))[0] == 200

    @pytest.mark.parametrize(
        "parameters",
        [
            {"properties": {"anything": True}},
            {"properties": None, "required": None},
            {"properties": ["command"], "required": "command"},
        ],
    )
    async def test_any_schema_a_tool_may_have_is_rendered(
        self, open_gateway: OpenGateway, parameters: dict[str, Any]
    ) -> None:
        gateway = await open_gateway(["Fine."])
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        assert (await gateway.post(await gateway.open(), {"messages": HELLO, "tools": [tool]}))[0] == 200

    async def test_a_refused_request_costs_no_call_of_the_budget(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Fine."], context_tokens=200)
        slot = await gateway.open(budgets={"max_calls": 1})
        long = [{"role": "user", "content": "word " * 400}]
        assert (await gateway.post(slot, {"messages": long}))[1]["error"]["code"] == "context_length_exceeded"
        assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200


class TestReplies:
    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "bash", "arguments": {"a": ' + "[" * 1200 + "</tool_call>",
        ],
        ids=["half a character", "endless brackets"],
    )
    @pytest.mark.parametrize("stream", [True, False])
    async def test_whatever_is_sampled_becomes_a_reply(
        self, open_gateway: OpenGateway, text: str, stream: bool
    ) -> None:
        gateway = await open_gateway([text])
        client = gateway.client(await gateway.open(), max_retries=0)
        if stream:
            chunks = await client.chat.completions.create(model="polar", messages=HELLO, stream=True)
            content = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        else:
            reply = await client.chat.completions.create(model="polar", messages=HELLO)
            content = reply.choices[0].message.content
        assert content == text, "a call that cannot be read stays in the content, word for word"
        assert [call.received for call in await gateway.calls()] == [True]

    @pytest.mark.parametrize("stream", [True, False])
    async def test_unreadable_tokens_are_kept_and_the_call_fails(
        self, open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        gateway = await open_gateway(["Fine."])
        slot = await gateway.open()

        def unreadable(*_: Any, **__: Any) -> None:
            raise IndexError("no such token")

        renderer = gateway.renderer  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(renderer, "reader", lambda *_, **__: None)
        monkeypatch.setattr(renderer, "parse", unreadable)
        received = await read_to_the_end(gateway, slot, {"messages": HELLO, "stream": stream})
        assert b'"gateway_error"' in received and b"[DONE]" not in received and b"no such token" not in received
        (call,) = await gateway.calls()
        assert (call.finish_reason, call.received) == ("aborted", False)
        assert call.completion_ids.tolist() == gateway.engine.requests[0].completion_ids
        (failure,) = gateway.slots.outcome("s1").failures
        assert (failure.where, failure.message) == ("renderer", "no such token")

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_call_that_cannot_be_journalled_is_not_answered(
        self, open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        gateway = await open_gateway(["Fine."])
        slot = await gateway.open()

        async def full(_: Any) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(gateway.journal, "append_call", full)
        received = await read_to_the_end(gateway, slot, {"messages": HELLO, "stream": stream})
        assert b'"gateway_error"' in received and b"Fine." not in received
        (failure,) = gateway.slots.outcome("s1").failures
        assert failure.where == "journal"

    async def test_a_conversation_that_cannot_be_rendered_is_a_hard_stop(
        self, open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = await open_gateway(["never"])
        slot = await gateway.open()

        def refuse(*_: Any) -> None:
            raise ValueError("roles must alternate")

        monkeypatch.setattr(type(gateway.renderer), "render", refuse)  # pyright: ignore[reportPrivateUsage]
        status, body, headers = await gateway.post(slot, {"messages": HELLO})
        assert (status, headers["x-should-retry"], body["error"]["code"]) == (400, "false", "not_renderable")
        refusal = gateway.slots.outcome("s1").refusal
        assert refusal and refusal.code == "not_renderable" and "roles must alternate" in refusal.message

    async def test_an_engine_that_is_cancelled_from_within_has_failed(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([])
        slot = await gateway.open()

        async def cancelled(_: GenerateRequest) -> AsyncGenerator[Piece]:
            raise asyncio.CancelledError
            yield

        gateway.engine.generate = cancelled  # type: ignore[method-assign]
        status, body, _ = await gateway.post(slot, {"messages": HELLO})
        assert (status, body["error"]["code"]) == (502, "engine_error")
        assert gateway.slots.outcome("s1").failures

    @pytest.mark.parametrize(
        ("pieces", "words", "kept"),
        [
            ([], "finish reason", 0),
            ([Piece(token_ids([5]), logprobs([-1.0]))], "finish reason", 1),
            ([Piece(token_ids([5, 6]), logprobs([-1.0]), finish_reason="stop")], "2 ids and 1 logprobs", 1),
        ],
        ids=["nothing", "no end", "a logprob missing"],
    )
    async def test_an_engine_that_breaks_its_promise_is_found_out(
        self, open_gateway: OpenGateway, pieces: list[Piece], words: str, kept: int
    ) -> None:
        gateway = await open_gateway([])
        slot = await gateway.open()

        async def careless(_: GenerateRequest) -> AsyncGenerator[Piece]:
            for piece in pieces:
                yield piece

        gateway.engine.generate = careless  # type: ignore[method-assign]
        assert (await gateway.post(slot, {"messages": HELLO}))[0] == 502
        (failure,) = gateway.slots.outcome("s1").failures
        assert failure.type == "EngineDefect" and words in failure.message
        assert [(c.finish_reason, c.received) for c in await gateway.calls()] == [("aborted", False)] * kept


async def read_to_the_end(gateway: Gateway, slot: Slot, body: Any) -> bytes:
    """All that is sent, whether the end is clean or not."""
    reader, writer = await connect(slot)
    writer.write(raw_request(slot, orjson.dumps(body)).replace(b"host: x", b"host: x\r\nconnection: close"))
    received = await reader.read()
    writer.close()
    return received


class TestSealing:
    async def test_a_body_that_never_ends_does_not_hold_sealing_up(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        slot = await gateway.open()
        reader, writer = await connect(slot)
        body = orjson.dumps({"messages": HELLO})
        writer.write(raw_request(slot, body[:-1], length=len(body)))
        await asyncio.sleep(0.1)
        async with hang_limit():
            await gateway.slots.close("s1")
        writer.write(body[-1:])
        assert b"session_sealed" in await reader.readuntil(b'session_sealed"')
        writer.close()
        assert await gateway.calls() == []

    @pytest.mark.parametrize("stalls_at", ["first event", "heartbeat", "reply"])
    async def test_a_client_that_does_not_read_does_not_hold_sealing_up(
        self, open_gateway: OpenGateway, stalls_at: str
    ) -> None:
        script = ScriptedReply(text="Hello to you.", block_after=None if stalls_at == "reply" else 2)
        gateway = await open_gateway([script], heartbeat_s=0.01)
        slot = await gateway.open()
        route = _route_of(gateway)
        stalled = asyncio.Event()

        async def send(message: AsgiMessage) -> None:
            marks = {"first event": b'"role"', "heartbeat": b'"delta":{}', "reply": b"Hello"}
            if marks[stalls_at] in message.get("body", b""):
                stalled.set()
                await asyncio.Event().wait()

        serving = asyncio.create_task(route(_scope(slot), _client({"messages": HELLO, "stream": True}), send))
        await stalled.wait()
        async with hang_limit():
            await gateway.slots.seal("s1")
        await serving
        (call,) = await gateway.calls()
        assert (call.finish_reason, call.received) == ("stop" if stalls_at == "reply" else "aborted", False)
        assert call.completion_ids.tolist() == gateway.engine.requests[0].completion_ids

    async def test_a_request_that_waits_while_the_slot_is_sealed_is_not_sampled(
        self, open_gateway: OpenGateway
    ) -> None:
        gateway = await open_gateway(["never"])
        slot = await gateway.open()
        opened = gateway.slots.find(slot.key)
        assert opened
        async with opened.lock:
            pending = asyncio.create_task(gateway.post(slot, {"messages": HELLO}))
            await until(lambda: opened._active)  # pyright: ignore[reportPrivateUsage]
            sealing = asyncio.create_task(gateway.slots.seal("s1"))
            await asyncio.sleep(0)
        await sealing
        assert (await pending)[1]["error"]["code"] == "session_sealed"
        assert gateway.engine.requests == [] and await gateway.calls() == []


def _route_of(gateway: Gateway) -> ModelRoute:
    return ModelRoute(
        OpenAIChat(), Service(gateway.slots, gateway.calls_served, GatewayConfig(heartbeat_s=0.01), CallThreads())
    )


def _scope(slot: Slot) -> dict[str, Any]:
    headers = [(b"x-api-key", slot.key.encode())]
    return {"type": "http", "headers": headers, "query_string": b"", "path_params": {}}


def _client(body: Any) -> Any:
    """A client that sends its request and stays."""
    parts = [orjson.dumps(body)]

    async def receive() -> AsgiMessage:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    return receive


class TestReceived:
    """`received` is the truth about a client that leaves at the worst moment."""

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_client_that_left_just_now_has_received_nothing(self, stream: bool) -> None:
        left = asyncio.Event()

        async def receive() -> AsgiMessage:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: AsgiMessage) -> None:
            """What the server does for a client that left: nothing, without a word."""

        connection = Connection(receive, send)
        connection.watch()
        await asyncio.sleep(0)
        left.set()  # the watcher has had no turn since
        whole = connection.finish_stream(b"end") if stream else connection.respond(200, b"{}", {})
        assert not await whole
        await connection.close()

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_client_that_leaves_while_the_reply_waits_for_it_has_not_received_it(
        self, stream: bool
    ) -> None:
        left = asyncio.Event()

        async def receive() -> AsgiMessage:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: AsgiMessage) -> None:
            if message["type"] == "http.response.body" and not message["more_body"]:
                left.set()  # the buffer is full, so the server waits, and the client leaves meanwhile
                await asyncio.sleep(0)

        connection = Connection(receive, send)
        connection.watch()
        whole = connection.finish_stream(b"end") if stream else connection.respond(200, b"{}", {})
        assert not await whole
        await connection.close()

    async def test_a_reply_that_is_over_is_no_client_that_left(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(lambda turn, prompt: "Fine.")
        slot = await gateway.open()
        tool: Any = BASH_TOOL
        for stream in (True, False):
            await read_to_the_end(gateway, slot, {"messages": HELLO, "stream": stream, "tools": [tool]})
        await gateway.slots.seal("s1")
        assert [call.received for call in await gateway.calls()] == [True, True]

    async def test_of_equal_replies_the_one_that_arrived_is_continued(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(lambda turn, prompt: "Same." if turn < 2 else "More.")
        slot = await gateway.open()
        assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200
        left = asyncio.Event()
        parts = [orjson.dumps({"messages": HELLO})]

        async def receive() -> AsgiMessage:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: AsgiMessage) -> None:
            left.set()
            await asyncio.sleep(0)

        await _route_of(gateway)(_scope(slot), receive, send)
        history = [*HELLO, {"role": "assistant", "content": "Same."}, {"role": "user", "content": "more"}]
        assert (await gateway.post(slot, {"messages": history}))[0] == 200
        first, lost, third = await gateway.calls()
        assert (first.received, lost.received) == (True, False)
        assert third.parent_id == first.call_id
