"""Playbooks in Anthropic's dialect, with the official SDK as the harness."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import msgspec
import orjson
import pytest
from anthropic import AsyncAnthropic
from playbook import Gateway, OpenGateway, assert_tokens_hold_together
from pydantic import BaseModel

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Slot

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH: Any = {"name": "bash", "description": "Run a command.", "input_schema": SCHEMA}
CALL_LS = '<tool_call>{"name": "bash", "arguments": {"command":"ls  -l"}}</tool_call>'
CALL_PWD = '<tool_call>{"name": "bash", "arguments": {"command": "pwd"}}</tool_call>'


def sdk(gateway: Gateway, slot: Slot, **options: Any) -> AsyncAnthropic:
    client = AsyncAnthropic(**{"base_url": slot.base_url, "api_key": slot.key, **options})
    gateway.stack.push_async_callback(client.close)
    return client


async def ask(client: AsyncAnthropic, messages: list[Any], *, stream: bool = False, **fields: Any) -> Any:
    """One reply, streamed and put together by the SDK, or whole."""
    fields = {"model": "polar", "max_tokens": 200, "messages": messages, **fields}
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as events:
        return await events.get_final_message()


def echo(reply: Any) -> dict[str, Any]:
    """The reply as a harness sends it back, with everything the SDK read of it."""
    blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in reply.content]
    return {"role": "assistant", "content": blocks}


def results(*answers: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in answers]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_reply(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway(["Hello to you."])
    reply = await ask(sdk(gateway, await gateway.open()), HELLO, stream=stream, system="Be kind.")
    assert (reply.content[0].text, reply.stop_reason, reply.model) == ("Hello to you.", "end_turn", "polar")
    (call,) = await gateway.calls()
    assert call.received and call.dialect == "anthropic" and reply.id == f"msg_{call.call_id}"
    assert reply.usage.input_tokens == call.prompt_tokens
    assert reply.usage.output_tokens == len(call.completion_ids) == len(call.logprobs)
    assert [message.role for message in call.new_messages] == ["system", "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_keeps_the_sampled_tokens(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer, stream: bool
) -> None:
    gateway = await open_gateway([f"Let me see. {CALL_LS}", "Done."])
    client = sdk(gateway, await gateway.open())
    marked = {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}
    first = await ask(client, [{"role": "user", "content": [marked]}], stream=stream, tools=[BASH])
    text, call = first.content
    assert (text.type, call.type, first.stop_reason) == ("text", "tool_use", "tool_use")
    assert (call.name, call.input) == ("bash", {"command": "ls  -l"})
    # The mark moves on, and the text it stood on is a plain one now.
    history = [
        {"role": "user", "content": "go"},
        echo(first),
        {"role": "user", "content": results((call.id, "a.txt"))},
    ]
    second = await ask(client, history, stream=stream, tools=[BASH])
    assert second.content[0].text == "Done."
    calls = await gateway.calls()
    assert [c.finish_reason for c in calls] == ["tool_calls", "stop"]
    assert calls[1].parent_id == calls[0].call_id and calls[1].continues
    assert_tokens_hold_together(calls, gateway.engine)
    assert smollm2.decode(calls[1].new_prompt_ids).startswith("\n<|im_start|>tool\na.txt")
    whole_prompt = second.usage.input_tokens + second.usage.cache_read_input_tokens
    assert whole_prompt == calls[1].prompt_tokens and second.usage.cache_read_input_tokens > 0


async def test_parallel_calls_and_their_results(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([f"{CALL_LS}\n{CALL_PWD}", "Both done."])
    client = sdk(gateway, await gateway.open())
    first = await ask(client, HELLO, stream=True, tools=[BASH])
    assert [block.input["command"] for block in first.content if block.type == "tool_use"] == ["ls  -l", "pwd"]
    ls, pwd = [block.id for block in first.content if block.type == "tool_use"]
    assert ls != pwd
    answers = [*results((ls, "a.txt"), (pwd, "/work")), {"type": "text", "text": "Be quick."}]
    second = await ask(client, [*HELLO, echo(first), {"role": "user", "content": answers}], tools=[BASH])
    assert second.content[0].text == "Both done."
    calls = await gateway.calls()
    messages = [(message.role, message.content) for message in calls[1].new_messages[-3:]]
    assert messages == [("tool", "a.txt"), ("tool", "/work"), ("user", "Be quick.")]
    assert_tokens_hold_together(calls, gateway.engine)


async def test_the_events_of_a_stream(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([f"Let me see. {CALL_LS}"])
    slot = await gateway.open()
    body = {"model": "m", "max_tokens": 99, "messages": HELLO, "tools": [BASH], "stream": True}
    headers = {"x-api-key": slot.key, "anthropic-version": "2023-06-01", "anthropic-beta": "a-beta-2027-01-01"}
    async with gateway.http.post(f"{slot.base_url}/v1/messages?beta=true", json=body, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (await response.text()).splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    payloads = [orjson.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [payload["type"] for payload in payloads] == names
    assert (names[0], names[-2], names[-1]) == ("message_start", "message_delta", "message_stop")
    assert payloads[0]["message"]["usage"]["input_tokens"] > 0
    indexes = [p["index"] for p in payloads if p["type"] in ("content_block_start", "content_block_stop")]
    assert indexes == [0, 0, 1, 1]
    assert payloads[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_a_stream_is_kept_awake_while_the_engine_is_silent(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="At last.", block_after=2)], heartbeat_s=0.05)
    slot = await gateway.open()
    body = {"model": "m", "max_tokens": 99, "messages": HELLO, "stream": True}
    headers = {"authorization": f"Bearer {slot.key}"}
    async with gateway.http.post(f"{slot.base_url}/v1/messages", json=body, headers=headers) as response:
        received = await response.content.readuntil(b"event: ping\n")
        assert received.startswith(b"event: message_start\n") and gateway.engine.active == 1
        gateway.engine.release()
        assert (await response.content.read()).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


async def test_a_history_as_a_harness_sends_it(open_gateway: OpenGateway) -> None:
    """Fields and blocks of a coding harness: betas, marks, a note to the model in the middle, deferred tools."""
    gateway = await open_gateway(["Fine."])
    body = {
        "model": "m",
        "max_tokens": 32000,
        "stream": False,
        "system": [{"type": "text", "text": "You code."}, {"type": "text", "text": "Here.", "cache_control": {}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "system", "content": "A note."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "foreign"},
                    {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}},
                ],
            },
            {"role": "user", "content": results(("toolu_1", "a.txt"))},
        ],
        "tools": [
            BASH,
            {**BASH, "name": "edit", "defer_loading": True},
            {"type": "web_search_20250305", "name": "w"},
        ],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
        "temperature": 0.3,
    }
    status, reply, _ = await gateway.post(await gateway.open(), body, "/v1/messages?beta=true")
    assert (status, reply["content"]) == (200, [{"type": "text", "text": "Fine."}])
    (call,) = await gateway.calls()
    roles = [message.role for message in call.new_messages]
    assert roles == ["system", "user", "system", "assistant", "tool"]
    assert call.new_messages[0].content == "You code.\n\nHere."
    assert [tool.name for tool in call.tools or ()] == ["bash"]
    asked = {"temperature": 0.3, "thinking": body["thinking"], "effort": "high"}
    assert call.sampling["asked"] == asked and call.sampling["temperature"] == 1.0


class TestLimits:
    async def test_max_tokens(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["A long reply that goes on and on."])
        reply = await ask(sdk(gateway, await gateway.open()), HELLO, max_tokens=3)
        assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 3)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_stop_sequence(self, open_gateway: OpenGateway, stream: bool) -> None:
        gateway = await open_gateway(["One. END Two."])
        reply = await ask(sdk(gateway, await gateway.open()), HELLO, stream=stream, stop_sequences=["END"])
        assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == ("One. ", "stop_sequence", "END")
        (call,) = await gateway.calls()
        assert (
            call.completion_ids.tolist() == gateway.engine.requests[0].completion_ids[: len(call.completion_ids)]
        )

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_empty_reply_is_an_empty_text(self, open_gateway: OpenGateway, stream: bool) -> None:
        gateway = await open_gateway([""])
        reply = await ask(sdk(gateway, await gateway.open()), HELLO, stream=stream)
        assert [(block.type, block.text) for block in reply.content] == [("text", "")]


class City(BaseModel):
    name: str


class TestStructuredOutput:
    async def test_the_engine_is_held_to_the_schema(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(['{"name": "Zürich"}'])
        client = sdk(gateway, await gateway.open())
        reply = await client.messages.parse(model="polar", max_tokens=50, messages=HELLO, output_format=City)
        assert reply.parsed_output == City(name="Zürich")
        schema = gateway.engine.requests[0].request.json_schema
        assert schema and schema["properties"]["name"]["type"] == "string"

    async def test_an_engine_that_cannot_says_so(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        info = gateway.engine._info  # pyright: ignore[reportPrivateUsage]
        msgspec.structs.force_setattr(info, "constrains", False)
        wanted: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        with pytest.raises(anthropic.BadRequestError, match="schema-constrained"):
            await ask(sdk(gateway, await gateway.open()), HELLO, output_config=wanted)
        assert gateway.engine.requests == []


class TestCounting:
    async def test_it_is_the_real_number(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Hi."])
        client = sdk(gateway, await gateway.open())
        asked: dict[str, Any] = {"messages": HELLO, "system": "Be kind.", "tools": [BASH]}
        count = await client.messages.count_tokens(model="polar", **asked)
        assert await gateway.calls() == [] and gateway.engine.requests == []
        reply = await client.messages.create(model="polar", max_tokens=9, **asked)
        assert count.input_tokens == reply.usage.input_tokens
        without = await client.messages.count_tokens(model="polar", messages=HELLO)
        assert 0 < without.input_tokens < count.input_tokens
        assert len(await gateway.calls()) == 1

    async def test_it_costs_no_budget(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Hi."])
        client = sdk(gateway, await gateway.open(budgets={"max_calls": 1}))
        for _ in range(3):
            await client.messages.count_tokens(model="polar", messages=HELLO)
        assert (await ask(client, HELLO)).content[0].text == "Hi."

    async def test_it_refuses_as_a_sample_would(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([])
        messages: list[Any] = [{"role": "user", "content": [{"type": "document", "source": {}}]}]
        with pytest.raises(anthropic.BadRequestError, match="document blocks are not supported"):
            await sdk(gateway, await gateway.open()).messages.count_tokens(model="polar", messages=messages)


class TestModels:
    async def test_the_one_model_is_listed(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([], context_tokens=4096)
        client = sdk(gateway, await gateway.open())
        (model,) = [model async for model in client.models.list()]
        assert (model.id, model.type, model.max_input_tokens) == ("polar", "model", 4096)
        assert await client.models.retrieve("polar") == model

    async def test_another_is_not_there(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([])
        with pytest.raises(anthropic.NotFoundError):
            await sdk(gateway, await gateway.open()).models.retrieve("another")


class TestErrors:
    async def test_the_sdk_asks_again_when_the_engine_fails(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(error="busy"), "Better."])
        reply = await ask(sdk(gateway, await gateway.open()), HELLO)
        assert reply.content[0].text == "Better."
        received = [(call.finish_reason, call.received) for call in await gateway.calls()]
        assert received == [("aborted", False), ("stop", True)]

    async def test_an_engine_failure_has_the_providers_type(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(error="out of memory")])
        with pytest.raises(anthropic.InternalServerError, match="out of memory") as caught:
            await ask(sdk(gateway, await gateway.open(), max_retries=0), HELLO)
        body: Any = caught.value.body
        assert body["error"]["type"] == "api_error"
        assert caught.value.request_id == body["request_id"]

    async def test_a_stream_that_breaks_is_cut(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(text="Half a sentence that goes on", error="gone")])
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(sdk(gateway, await gateway.open(), max_retries=0), HELLO, stream=True)
        (kept,) = await gateway.calls()
        assert kept.finish_reason == "aborted" and not kept.received

    async def test_a_session_that_ends_meanwhile_says_so(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(text="Half a sentence that", block_after=2)])
        client = sdk(gateway, await gateway.open(), max_retries=0)
        asked: Any = {"model": "polar", "max_tokens": 50, "messages": HELLO}
        async with client.messages.stream(**asked) as events:
            await anext(aiter(events))
            await gateway.slots.seal("s1")
            with pytest.raises(anthropic.APIStatusError, match="invalid_request_error"):
                await events.get_final_message()

    async def test_an_overflow_is_worded_so_that_harnesses_compact(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"], context_tokens=200)
        long: list[Any] = [{"role": "user", "content": "word " * 400}]
        wording = r"prompt is too long: \d+ tokens > 200 maximum"
        with pytest.raises(anthropic.BadRequestError, match=wording) as caught:
            await ask(sdk(gateway, await gateway.open()), long, stream=True)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert gateway.engine.requests == []

    async def test_a_wrong_key(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        client = sdk(gateway, await gateway.open(), api_key="of somebody else")
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await ask(client, HELLO)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"

    async def test_a_refused_field_is_named(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        client = sdk(gateway, await gateway.open())
        with pytest.raises(anthropic.BadRequestError, match="tool_choice must be auto or none"):
            await ask(client, HELLO, tools=[BASH], tool_choice={"type": "any"})
        with pytest.raises(anthropic.BadRequestError, match="a turn is always sampled as a whole"):
            await ask(client, [*HELLO, {"role": "assistant", "content": "The answer is"}])
        assert gateway.engine.requests == [] and await gateway.calls() == []

    async def test_max_tokens_is_required(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        status, body, _ = await gateway.post(await gateway.open(), {"messages": HELLO}, "/v1/messages")
        assert (status, body["error"]["message"]) == (400, "max_tokens is required")

    async def test_an_image_is_refused_by_a_model_of_text(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        with pytest.raises(anthropic.BadRequestError, match="image"):
            await ask(sdk(gateway, await gateway.open()), [{"role": "user", "content": [image]}])

    async def test_a_spent_budget_ends_the_session(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Hi.", "never"])
        client = sdk(gateway, await gateway.open(budgets={"max_calls": 1}))
        await ask(client, HELLO)
        with pytest.raises(anthropic.BadRequestError):
            await ask(client, HELLO)
        assert len(gateway.engine.requests) == 1

    async def test_another_path_is_not_found(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        status, body, headers = await gateway.post(await gateway.open(), {}, "/v1/messages/batches")
        assert (status, body["error"]["type"]) == (404, "not_found_error")
        assert headers["request-id"] == body["request_id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdks_tool_runner_goes_on_without_a_thread(open_gateway: OpenGateway, stream: bool) -> None:
    """It asks for a thread first, and for the whole history once it reads why there is none."""
    gateway = await open_gateway([CALL_LS, "Two files."])
    client = sdk(gateway, await gateway.open())
    ran: list[str] = []

    @anthropic.beta_async_tool
    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "a.txt b.txt"

    fields: Any = {"model": "polar", "max_tokens": 200, "messages": HELLO, "tools": [bash], "stream": stream}
    last = await client.beta.messages.tool_runner(**fields).until_done()
    assert (last.content[0].text, ran) == ("Two files.", ["ls  -l"])
    first, second = await gateway.calls()
    assert second.parent_id == first.call_id and second.continues


async def test_a_refused_thread_names_its_code(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"])
    with pytest.raises(anthropic.BadRequestError) as caught:
        extra: Any = {"thread": {"type": "create"}}
        await ask(sdk(gateway, await gateway.open()), HELLO, extra_body=extra)
    body: Any = caught.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}
