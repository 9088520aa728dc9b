"""What the gateway refuses, in the provider's shape, and what it does when things break half-way."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from dialect_clients import DIALECT_CLIENTS, DialectClient
from playbook import BASH_TOOL, Gateway, OpenGateway

from polar.testing import ScriptedReply
from polar.types import Slot
from waiting import until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


async def test_an_unknown_key_learns_nothing(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"])
    slot = (await gateway.open()).model_copy(update={"key": "sk-guess"})
    with pytest.raises(openai.AuthenticationError) as caught:
        await gateway.client(slot).chat.completions.create(model="polar", messages=HELLO)
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        await gateway.client(slot).models.list()
    assert gateway.engine.requests == [] and await gateway.calls() == []


async def test_a_missing_key_is_unknown_too(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    async with gateway.http.post(f"{slot.base_url}/v1/chat/completions", json={"messages": HELLO}) as response:
        assert response.status == 401


async def test_the_key_may_come_as_x_api_key(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hi."])
    slot = await gateway.open()
    url, headers = f"{slot.base_url}/v1/chat/completions", {"x-api-key": slot.key}
    async with gateway.http.post(url, json={"messages": HELLO}, headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_sealed_session_is_a_hard_stop(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway(["never"])
    slot = await gateway.open()
    await gateway.slots.seal("s1")
    status, body, headers = await gateway.post(slot, {"messages": HELLO, "stream": stream})
    assert (status, headers["x-should-retry"], body["error"]["code"]) == (400, "false", "session_sealed")
    assert not any(digits in body["error"]["message"] for digits in ("429", "500", "502", "503", "504"))
    with pytest.raises(openai.BadRequestError):
        await gateway.client(slot).chat.completions.create(model="polar", messages=HELLO)
    assert gateway.engine.requests == [] and await gateway.calls() == []


async def test_a_closed_sessions_key_is_dead(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    await gateway.slots.close("s1")
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 401
    await gateway.slots.close("s1")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/x", "/v1/embeddings", "/v1/complete", "/chat/completions", "/v2/completions"]
)
async def test_unknown_paths_are_not_generations(open_gateway: OpenGateway, path: str) -> None:
    gateway = await open_gateway(["never"])
    status, body, _ = await gateway.post(await gateway.open(), {"messages": HELLO}, path)
    assert status == 404 and path in body["error"]["message"]
    assert gateway.engine.requests == [] and await gateway.calls() == []


async def test_a_wrong_method_is_refused(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    async with gateway.http.get(f"{slot.base_url}/v1/chat/completions") as response:
        assert response.status == 405


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{not json", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": HELLO, "tools": {}}, "tools"),
        ({"messages": HELLO, "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "n": 2}, "n"),
        ({"messages": HELLO, "stop": [7]}, "stop"),
        ({"messages": HELLO, "logit_bias": {"1": 2}}, "logit_bias"),
        ({"messages": HELLO, "response_format": {"type": "grammar"}}, "response_format"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": "many"}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens"),
    ],
)
async def test_bad_requests_name_what_is_wrong(open_gateway: OpenGateway, body: Any, param: str | None) -> None:
    gateway = await open_gateway(["never"])
    status, reply, headers = await gateway.post(await gateway.open(), body)
    assert (status, headers["x-should-retry"]) == (400, "false")
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["param"] == param
    assert gateway.engine.requests == []


@pytest.mark.parametrize(
    "extra",
    [
        {"store": False, "user": "u", "metadata": {}, "parallel_tool_calls": True, "reasoning_effort": "low"},
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "n": 1, "stop": None},
        {"tools": [BASH_TOOL], "tool_choice": "none", "some_new_field": {"a": 1}},
    ],
)
async def test_harmless_fields_are_taken(open_gateway: OpenGateway, extra: dict[str, Any]) -> None:
    gateway = await open_gateway(["Fine."])
    status, body, _ = await gateway.post(await gateway.open(), {"messages": HELLO, **extra})
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Fine.")


async def test_shapes_of_history_are_understood(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Fine."])
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "out"}]},
    ]
    assert (await gateway.post(await gateway.open(), {"messages": messages}))[0] == 200
    (stored,) = await gateway.calls()
    assert [m.role for m in stored.new_messages] == ["system", "user", "assistant", "tool"]
    assert stored.new_messages[1].content == "ab"
    assert stored.new_messages[2].tool_calls[0].arguments == '{"command":"ls"}'
    assert stored.new_messages[2].reasoning == "hm"


async def test_a_body_has_a_bound(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"], max_body_bytes=10_000)
    slot = await gateway.open()
    body = {"messages": [{"role": "user", "content": "x" * 20_000}]}
    try:
        status = (await gateway.post(slot, body))[0]
    except aiohttp.ClientError:  # refused before all of the body was sent
        status = 413
    assert status == 413
    assert gateway.engine.requests == [] and await gateway.calls() == []


async def test_overflow_is_worded_as_harnesses_expect(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"], context_tokens=200)
    long = [{"role": "user", "content": "word " * 400}]
    status, body, _ = await gateway.post(await gateway.open(), {"messages": long, "stream": True})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 200 tokens" in body["error"]["message"]


async def test_a_reply_gets_the_room_that_is_left(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["word " * 300], context_tokens=100)
    await gateway.post(await gateway.open(), {"messages": HELLO})
    request = gateway.engine.requests[0].request
    assert request.max_tokens == 100 - len(request.prompt_ids)


async def test_budgets_end_a_session_in_the_providers_terms(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(lambda turn, prompt: "Some words here.")
    calls, tokens = (
        await gateway.open("calls", budgets={"max_calls": 2}),
        await gateway.open("tokens", budgets={"max_tokens": 3}),
    )
    statuses = [(await gateway.post(calls, {"messages": HELLO}))[0] for _ in range(3)]
    assert statuses == [200, 200, 400]
    first, second = [await gateway.post(tokens, {"messages": HELLO}) for _ in range(2)]
    assert first[1]["usage"]["completion_tokens"] == 3
    assert (second[0], second[1]["error"]["code"]) == (400, "budget_exhausted")


class TestEngineFailure:
    async def test_a_plain_call_gets_a_status_that_invites_a_retry(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(error="out of memory"), "Better."])
        slot = await gateway.open()
        status, body, headers = await gateway.post(slot, {"messages": HELLO})
        assert (status, headers["x-should-retry"], body["error"]["type"]) == (502, "true", "server_error")
        (failure,) = gateway.slots.outcome("s1").failures
        assert "out of memory" in failure.message and not failure.agent
        assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200
        assert gateway.slots.outcome("s1").failures == (), "its own retry clears it"

    async def test_the_sdk_retries_by_itself(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(error="busy"), "Better."])
        reply = await gateway.client(await gateway.open()).chat.completions.create(model="polar", messages=HELLO)
        assert reply.choices[0].message.content == "Better."
        assert [(c.finish_reason, c.received) for c in await gateway.calls()] == [
            ("aborted", False),
            ("stop", True),
        ]

    async def test_a_stream_is_cut_and_has_no_clean_end(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(text="Half a", error="gone")])
        stream = await gateway.client(await gateway.open(), max_retries=0).chat.completions.create(
            model="polar", messages=HELLO, stream=True
        )
        with pytest.raises(openai.APIConnectionError):
            async for _ in stream:
                pass
        (kept,) = await gateway.calls()
        assert kept.finish_reason == "aborted" and not kept.received and len(kept.completion_ids) > 0

    async def test_an_engine_that_aborts_is_not_a_quiet_success(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(text="Half", abort=True)])
        assert (await gateway.post(await gateway.open(), {"messages": HELLO}))[0] == 502
        assert [c.finish_reason for c in await gateway.calls()] == ["aborted"]

    async def test_missing_logprobs_are_kept_as_missing(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(text="Hm.", without_logprobs=True)])
        assert (await gateway.post(await gateway.open(), {"messages": HELLO}))[0] == 200
        (call,) = await gateway.calls()
        assert all(value != value for value in call.logprobs)


async def start_blocked(gateway: Gateway, slot: Slot, stream: bool) -> aiohttp.ClientResponse:
    headers = {"authorization": f"Bearer {slot.key}"}
    body = {"messages": HELLO, "stream": stream}
    return await gateway.http.post(f"{slot.base_url}/v1/chat/completions", json=body, headers=headers)


async def test_a_stream_begins_at_once_and_is_kept_awake(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="At last.", block_after=2)], heartbeat_s=0.05)
    response = await start_blocked(gateway, await gateway.open(), stream=True)
    lines = [await response.content.readline() for _ in range(8)]  # the engine has not finished yet
    assert gateway.engine.active == 1
    assert b'"role":"assistant"' in lines[0] and b'"content":"At' in lines[2]
    assert b'"delta":{}' in lines[4] and b'"delta":{}' in lines[6]
    gateway.engine.release()
    rest = (await response.read()).decode()
    assert "last." in rest and rest.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_generation(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway([ScriptedReply(text="Nobody hears this.", block_after=3), "Next."], linger_s=0)
    slot = await gateway.open()
    opened = gateway.slots.find(slot.key)
    assert opened
    pending = asyncio.create_task(start_blocked(gateway, slot, stream))
    await until(lambda: gateway.engine.active == 1)
    if stream:
        (await pending).close()
    else:
        pending.cancel()
    await until(lambda: gateway.engine.active == 0 and not opened._active)  # pyright: ignore[reportPrivateUsage]
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200
    aborted, following = await gateway.calls()
    assert (aborted.finish_reason, aborted.received, len(aborted.completion_ids)) == ("aborted", False, 3)
    assert following.received and following.parent_id is None


@pytest.mark.parametrize("stream", [True, False])
async def test_sealing_breaks_off_what_runs(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway([ScriptedReply(text="Never finished.", block_after=2)])
    slot = await gateway.open()
    body = orjson.dumps({"messages": HELLO, "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {slot.key}\r\nconnection: close\r\n"
    host, port = slot.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    received = await reader.readuntil(b'"role"') if stream else b""
    await until(lambda: gateway.engine.active == 1)
    await gateway.slots.seal("s1")
    assert gateway.engine.active == 0, "when seal returns, nothing runs"
    received += await reader.read()
    writer.close()
    assert received.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 400") and b"session_sealed" in received
    assert not received.endswith(b"\r\n0\r\n\r\n"), "a stream has no clean end"
    assert [c.finish_reason for c in await gateway.calls()] == ["aborted"]


NESTED: dict[str, dict[str, Any]] = {
    "anthropic": {"tools": [{"name": "bash", "input_schema": {"properties": "HERE"}}]},
    "openai_chat": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "HERE"}}}},
    "openai_responses": {"reasoning": {"summary": "HERE"}},
    "google": {"tools": [{"functionDeclarations": [{"name": "bash", "parameters": {"items": "HERE"}}]}]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_a_body_nested_too_deep_is_refused_in_the_dialects_own_form(
    open_gateway: OpenGateway, dialect: DialectClient, stream: bool
) -> None:
    gateway = await open_gateway(lambda turn, ids: "Fine.")
    slot = await gateway.open()
    statuses: dict[int, int] = {}
    for depth in (100, 240, *range(244, 256), 300, 500, 800, 1000, 1020, 1022, 1100):
        nested = '{"items":' * depth + "{}" + "}" * depth
        body = orjson.dumps(dialect.body(["hello"], stream=stream, **NESTED[dialect.name])).decode()
        filled = body.replace('"HERE"', nested).encode()
        statuses[depth], reply = await dialect.ask(gateway, slot, filled, stream=stream)
        assert statuses[depth] == 200 or b'"error"' in reply
    assert statuses[100] == 200 and set(statuses.values()) == {200, 400}
    assert all(status == 400 for depth, status in statuses.items() if depth >= 300)
    assert gateway.slots.outcome("s1").failures == ()


MOST_TOKENS = {
    "anthropic": "max_tokens",
    "openai_chat": "max_completion_tokens",
    "openai_responses": "max_output_tokens",
    "google": "maxOutputTokens",
}


@pytest.mark.parametrize("number", [b"18446744073709551616", b"1e30", b"1.7976931348623157e308"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_a_limit_beyond_all_numbers_is_refused_by_name(
    open_gateway: OpenGateway, dialect: DialectClient, stream: bool, number: bytes
) -> None:
    gateway = await open_gateway(["never"])
    field = MOST_TOKENS[dialect.name]
    more: Any = {"generationConfig": {field: "HERE"}} if dialect.name == "google" else {field: "HERE"}
    body = orjson.dumps(dialect.body(["hello"], stream=stream, **more)).replace(b'"HERE"', number)
    status, reply = await dialect.ask(gateway, await gateway.open(), body, stream=stream)
    assert status == 400 and field.encode() in reply
    assert gateway.engine.requests == []


@pytest.mark.parametrize("field", ["topK", "seed"])
async def test_numbers_of_google_have_sixty_four_bits(open_gateway: OpenGateway, field: str) -> None:
    gateway = await open_gateway(["never"])
    body = {"contents": [{"parts": [{"text": "hello"}]}], "generationConfig": {field: 1e30}}
    status, reply, _ = await gateway.post(await gateway.open(), body, "/v1beta/models/polar:generateContent")
    assert (status, reply["error"]["status"]) == (400, "INVALID_ARGUMENT")


PIXEL = "data:image/png;base64,aGk="
IMAGES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "anthropic": (
        [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "b", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [
                            {"type": "text", "text": "see"},
                            {"type": "image", "source": {"type": "url", "url": PIXEL}},
                        ],
                    }
                ],
            },
        ],
        "messages[].content[].content[]",
    ),
    "openai_chat": (
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
        ],
        "messages[2].content[0]",
    ),
    "openai_responses": (
        [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL}],
            }
        ],
        "input[1].content[1]",
    ),
    "google": (
        [{"role": "user", "parts": [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]}],
        "contents[1].parts[1].inlineData",
    ),
}


@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_a_refused_image_is_named_by_its_field(open_gateway: OpenGateway, dialect: DialectClient) -> None:
    """Not by its path in our canonical messages, which the harness never sees."""
    gateway = await open_gateway(["never"])
    body = dialect.body(["hello"])
    further, field = IMAGES[dialect.name]
    history = next(name for name in ("messages", "input", "contents") if name in body)
    body = {"instructions": "Be brief.", **body, history: [*body[history], *further]}
    status, reply = await dialect.ask(gateway, await gateway.open(), body)
    assert status == 400 and field in reply.decode(), reply
