"""Playbooks with Google's official SDK: it sends, the engine receives and sends, it reads, the store holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import orjson
import pytest
from google import genai
from google.genai import errors, types
from playbook import Gateway, OpenGateway, assert_tokens_hold_together

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Slot
from waiting import hang_limit

# The SDK's own way to use aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

CALL_LS = '<tool_call>{"name": "bash", "arguments": {"command":"ls  -l"}}</tool_call>'
CALL_PWD = '<tool_call>{"name": "bash", "arguments": {"command": "pwd"}}</tool_call>'
STRING = types.Schema(type=types.Type.STRING)
BASH = types.FunctionDeclaration(
    name="bash",
    description="Run a command.",
    parameters=types.Schema(type=types.Type.OBJECT, properties={"command": STRING}, required=["command"]),
)
WITH_BASH = types.GenerateContentConfig(
    system_instruction="S",
    tools=[types.Tool(function_declarations=[BASH])],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
HELLO: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


def connect(gateway: Gateway, slot: Slot, key: str | None = None) -> genai.client.AsyncClient:
    options = types.HttpOptions(base_url=slot.base_url)
    client = genai.Client(api_key=key or slot.key, http_options=options)
    gateway.stack.push_async_callback(client.aio.aclose)
    gateway.stack.callback(client.close)
    return client.aio


async def collect(stream: AsyncIterator[types.GenerateContentResponse]) -> list[types.GenerateContentResponse]:
    return [chunk async for chunk in stream]


def text_of(chunks: list[types.GenerateContentResponse]) -> str:
    return "".join(chunk.text or "" for chunk in chunks)


def finish_of(reply: types.GenerateContentResponse) -> Any:
    return reply.candidates[0].finish_reason if reply.candidates else None


def turn_of(reply: types.GenerateContentResponse) -> types.Content:
    assert reply.candidates and reply.candidates[0].content
    return reply.candidates[0].content


async def test_a_plain_reply(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello to you."])
    client = connect(gateway, await gateway.open())
    reply = await client.models.generate_content(model="polar", contents="hello")
    assert (reply.text, finish_of(reply)) == ("Hello to you.", types.FinishReason.STOP)
    (call,) = await gateway.calls()
    usage = reply.usage_metadata
    assert usage and usage.prompt_token_count == call.prompt_tokens
    assert usage.candidates_token_count == len(call.completion_ids) == len(call.logprobs)
    assert usage.total_token_count == call.prompt_tokens + len(call.completion_ids)
    assert reply.response_id == call.call_id and reply.model_version == "polar"
    assert call.received and call.dialect == "google"


async def test_a_streamed_reply(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello to\u2028you, \u0085 ñ."])
    client = connect(gateway, await gateway.open())
    chunks = await collect(await client.models.generate_content_stream(model="polar", contents="hello"))
    assert text_of(chunks) == "Hello to\u2028you, \u0085 ñ."
    assert [finish_of(chunk) for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert finish_of(chunks[-1]) == types.FinishReason.STOP
    (call,) = await gateway.calls()
    usage = chunks[-1].usage_metadata
    assert usage and usage.candidates_token_count == len(call.completion_ids)
    assert call.received


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_loop_keeps_the_sampled_tokens(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer, streamed: bool
) -> None:
    gateway = await open_gateway([f"Let me see. {CALL_LS}", "Done."])
    client = connect(gateway, await gateway.open())
    history: list[Any] = [types.Content(role="user", parts=[types.Part(text="go")])]
    if streamed:
        chunks = await collect(
            await client.models.generate_content_stream(model="polar", contents=history, config=WITH_BASH)
        )
        calls = [call for chunk in chunks for call in chunk.function_calls or []]
        history += [turn_of(chunk) for chunk in chunks]
    else:
        reply = await client.models.generate_content(model="polar", contents=history, config=WITH_BASH)
        calls = reply.function_calls or []
        history.append(turn_of(reply))
    assert [(call.name, call.args) for call in calls] == [("bash", {"command": "ls  -l"})]
    answer = types.FunctionResponse(id=calls[0].id, name="bash", response={"output": "a.txt"})
    history.append(types.Content(role="user", parts=[types.Part(function_response=answer)]))
    second = await client.models.generate_content(model="polar", contents=history, config=WITH_BASH)
    assert second.text == "Done."
    first_call, second_call = await gateway.calls()
    assert (first_call.finish_reason, second_call.finish_reason) == ("tool_calls", "stop")
    assert second_call.parent_id == first_call.call_id and second_call.continues
    assert_tokens_hold_together([first_call, second_call], gateway.engine)
    assert smollm2.decode(second_call.new_prompt_ids).startswith("\n<|im_start|>tool\na.txt")


async def test_parallel_tools_answered_by_name_and_order(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer
) -> None:
    gateway = await open_gateway([f"{CALL_LS}\n{CALL_PWD}", "Done."])
    client = connect(gateway, await gateway.open())
    history: list[Any] = [types.Content(role="user", parts=[types.Part(text="go")])]
    reply = await client.models.generate_content(model="polar", contents=history, config=WITH_BASH)
    calls = reply.function_calls or []
    assert [call.args for call in calls] == [{"command": "ls  -l"}, {"command": "pwd"}]
    assert len({call.id for call in calls}) == 2
    answers = [
        types.Part.from_function_response(name="bash", response={"result": text}) for text in ("a.txt", "/home")
    ]
    history += [turn_of(reply), types.Content(role="user", parts=answers)]
    assert (
        await client.models.generate_content(model="polar", contents=history, config=WITH_BASH)
    ).text == "Done."
    stored = await gateway.calls()
    assert stored[1].continues
    assert_tokens_hold_together(stored, gateway.engine)
    new = smollm2.decode(stored[1].new_prompt_ids)
    assert new.index("a.txt") < new.index("/home")


async def test_the_sdks_own_tool_loop(open_gateway: OpenGateway) -> None:
    """Automatic calling: the SDK describes a function, calls it and sends its result by itself."""
    ran: list[str] = []

    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "a.txt"

    gateway = await open_gateway([CALL_LS, "Done."])
    client = connect(gateway, await gateway.open())
    config = types.GenerateContentConfig(tools=[bash])
    reply = await client.models.generate_content(model="polar", contents="go", config=config)
    assert (reply.text, ran) == ("Done.", ["ls  -l"])
    calls = await gateway.calls()
    assert calls[1].continues
    assert_tokens_hold_together(calls, gateway.engine)


async def test_a_chat_keeps_a_streamed_turn(open_gateway: OpenGateway) -> None:
    """The SDK's chat keeps every chunk as a content of its own, and a turn with an odd chunk not at all."""
    gateway = await open_gateway(["Hello to you.", "Fine, thanks."])
    chat = connect(gateway, await gateway.open()).chats.create(model="polar")
    assert text_of(await collect(await chat.send_message_stream("hello"))) == "Hello to you."
    assert (await chat.send_message("how are you?")).text == "Fine, thanks."
    calls = await gateway.calls()
    assert calls[1].parent_id == calls[0].call_id and calls[1].continues
    assert_tokens_hold_together(calls, gateway.engine)


async def test_the_sdk_survives_heartbeats(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Hello to you, my friend.", block_after=3)], heartbeat_s=0.05)
    chat = connect(gateway, await gateway.open()).chats.create(model="polar")
    chunks: list[types.GenerateContentResponse] = []
    async for chunk in await chat.send_message_stream("hello"):
        chunks.append(chunk)
        if len(chunks) == 6:
            gateway.engine.release()
    assert text_of(chunks) == "Hello to you, my friend."
    assert sum(not chunk.text for chunk in chunks) > 3
    assert finish_of(chunks[-1]) == types.FinishReason.STOP
    assert (await gateway.calls())[0].received
    assert len(chat.get_history(curated=True)) > 1


async def test_structured_output_is_asked_of_the_engine(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(['{"city": "Oslo"}'])
    msgspec.structs.force_setattr(gateway.engine._info, "constrains", True)  # pyright: ignore[reportPrivateUsage]
    client = connect(gateway, await gateway.open())
    schema = types.Schema(type=types.Type.OBJECT, properties={"city": STRING}, required=["city"])
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=schema)
    reply = await client.models.generate_content(model="polar", contents="where?", config=config)
    assert reply.parsed == {"city": "Oslo"}
    assert gateway.engine.requests[0].request.json_schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }


async def test_counting_is_real_and_no_call(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hi."])
    slot = await gateway.open()
    client = connect(gateway, slot)
    counted = await client.models.count_tokens(model="polar", contents="hello")
    assert await gateway.calls() == [] and gateway.engine.requests == []
    await client.models.generate_content(model="polar", contents="hello")
    (call,) = await gateway.calls()
    assert counted.total_tokens == call.prompt_tokens
    tools = [{"functionDeclarations": [{"name": "bash"}]}]
    whole = {"generateContentRequest": {**HELLO, "tools": tools}}
    status, body, _ = await gateway.post(slot, whole, "/v1beta/models/polar:countTokens")
    assert status == 200 and body["totalTokens"] > call.prompt_tokens


async def test_models_are_listed(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([], context_tokens=2048)
    client = connect(gateway, await gateway.open())
    (model,) = [model async for model in await client.models.list()]
    assert (model.name, model.input_token_limit) == ("models/polar", 2048)
    assert (await client.models.get(model="polar")).supported_actions == ["generateContent", "countTokens"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_wrong_key_is_refused(open_gateway: OpenGateway, streamed: bool) -> None:
    gateway = await open_gateway([])
    client = connect(gateway, await gateway.open(), key="wrong")
    with pytest.raises(errors.ClientError) as caught:
        if streamed:
            await collect(await client.models.generate_content_stream(model="polar", contents="hello"))
        else:
            await client.models.generate_content(model="polar", contents="hello")
    assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")


async def test_an_overflow_is_written_in_googles_words(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([], context_tokens=64)
    client = connect(gateway, await gateway.open())
    with pytest.raises(errors.ClientError) as caught:
        await client.models.generate_content(model="polar", contents="hello " * 200)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert "exceeds the maximum number of tokens allowed (64)" in (caught.value.message or "")


async def test_a_refused_field_is_named(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    client = connect(gateway, await gateway.open())
    config = types.GenerateContentConfig(candidate_count=2)
    with pytest.raises(errors.ClientError) as caught:
        await client.models.generate_content(model="polar", contents="hello", config=config)
    assert "candidateCount" in (caught.value.message or "")


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_a_stream_without_alt_is_one_array(open_gateway: OpenGateway, version: str) -> None:
    gateway = await open_gateway([ScriptedReply(text="Hello to you.", block_after=2)], heartbeat_s=0.05)
    slot = await gateway.open()
    url = f"{slot.base_url}/{version}/models/polar:streamGenerateContent?key={slot.key}"
    async with gateway.http.post(url, json=HELLO) as response:
        assert response.status == 200
        first = await response.content.readline()
        assert first.startswith(b"[{")
        gateway.engine.release()
        chunks = orjson.loads(first + await response.content.read())
    assert "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks) == "Hello to you."
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
    assert (await gateway.calls())[0].received


async def test_a_broken_stream_is_cut_after_the_error(open_gateway: OpenGateway) -> None:
    """Google's clients read the error before the cut; others would take a whole body for a whole reply."""
    gateway = await open_gateway([ScriptedReply(text="Hello to you.", error="out of memory")])
    slot = await gateway.open()
    url = f"{slot.base_url}/v1beta/models/polar:streamGenerateContent?alt=sse"
    async with gateway.http.post(url, json=HELLO, headers={"x-goog-api-key": slot.key}) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        sent = b""
        with pytest.raises(aiohttp.ClientPayloadError):
            async for piece in response.content.iter_any():
                sent += piece
    error = orjson.loads(sent[sent.rindex(b'{"error"') :])["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    assert b"finishReason" not in sent


async def test_a_broken_array_is_cut(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Hello to you.", error="out of memory")])
    slot = await gateway.open()
    url = f"{slot.base_url}/v1beta/models/polar:streamGenerateContent"
    async with gateway.http.post(url, json=HELLO, headers={"x-goog-api-key": slot.key}) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_the_sdk_raises_the_error_of_a_broken_stream(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Hello to you.", error="out of memory")])
    client = connect(gateway, await gateway.open())
    chunks: list[types.GenerateContentResponse] = []
    with pytest.raises(errors.ServerError) as caught:
        async for chunk in await client.models.generate_content_stream(model="polar", contents="hello"):
            chunks.append(chunk)
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")
    assert chunks and not any(finish_of(chunk) for chunk in chunks)


async def test_a_lost_client_ends_the_generation(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Hello to you.", block_after=2)], linger_s=0.0)
    slot = await gateway.open()
    url = f"{slot.base_url}/v1beta/models/polar:streamGenerateContent?alt=sse&key={slot.key}"
    async with gateway.http.post(url, json=HELLO) as response:
        assert (await response.content.readline()).startswith(b"data: {")
        response.close()
    async with hang_limit():
        while not (calls := await gateway.calls()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [(call.finish_reason, call.received) for call in calls] == [("aborted", False)]


async def test_embeddings_are_refused_by_name(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"])
    client = connect(gateway, await gateway.open())
    with pytest.raises(errors.ClientError) as caught:
        await client.models.embed_content(model="polar", contents="hello")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert "mbedContent" in str(caught.value) and "generateContent" in str(caught.value)
    assert gateway.engine.requests == [] and await gateway.calls() == []


@pytest.mark.parametrize("path", ["/v1/models/polar:embedContent", "/v1beta/models/org/m:predict"])
async def test_other_methods_of_a_model_are_refused_in_googles_form(open_gateway: OpenGateway, path: str) -> None:
    """Also without a header that names the provider."""
    gateway = await open_gateway(["never"])
    status, body, _ = await gateway.post(await gateway.open(), {"content": {}}, path)
    assert (status, body["error"]["status"]) == (404, "NOT_FOUND")
    assert path.rpartition(":")[2] in body["error"]["message"]
