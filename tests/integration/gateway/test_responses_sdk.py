"""Playbooks of the Responses path with OpenAI's own SDK as the harness."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from playbook import Gateway, OpenGateway, assert_tokens_hold_together
from pydantic import BaseModel

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

BASH: dict[str, Any] = {
    "type": "function",
    "name": "bash",
    "description": "Run a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Edit a file."}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Agents that help.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
}


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


CALL_LS = call_text("bash", '{"command":"ls  -l"}')


async def ask(client: AsyncOpenAI, stream: bool, given: Any, **options: Any) -> Response:
    """The whole response, whichever way it comes."""
    if not stream:
        return await client.responses.create(model="polar", input=given, **options)
    async with client.responses.stream(model="polar", input=given, **options) as events:
        async for event in events:
            assert event.type != "error"
        return await events.get_final_response()


def echo(response: Response) -> list[Any]:
    """The output as a harness sends it back: complete, without empty fields."""
    return [item.model_dump(exclude_none=True) for item in response.output]


def result(item: Any, output: Any) -> dict[str, Any]:
    return {"type": f"{item.type}_output", "call_id": item.call_id, "output": output}


async def client_of(gateway: Gateway, **options: Any) -> AsyncOpenAI:
    return gateway.client(await gateway.open(), **options)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_text(open_gateway: OpenGateway, smollm2: SmolLM2Renderer, stream: bool) -> None:
    gateway = await open_gateway(["Hello to you."])
    reply = await ask(await client_of(gateway), stream, "hello", instructions="Be kind.")
    assert (reply.output_text, reply.status, reply.model) == ("Hello to you.", "completed", "polar")
    (call,) = await gateway.calls()
    assert reply.id == f"resp_{call.call_id}" and call.dialect == "openai_responses" and call.received
    assert reply.usage and reply.usage.input_tokens == call.prompt_tokens
    assert reply.usage.output_tokens == len(call.completion_ids) == len(call.logprobs)
    prompt = smollm2.decode(gateway.engine.requests[0].request.prompt_ids)
    assert prompt.index("system\nBe kind.") < prompt.index("user\nhello")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_keeps_the_sampled_tokens(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer, stream: bool
) -> None:
    gateway = await open_gateway([f"Let me see. {CALL_LS}", "Done."])
    client = await client_of(gateway)
    history: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "S"}]},
        {"role": "user", "content": "go"},
    ]
    first = await ask(client, stream, history, tools=[BASH, {"type": "web_search"}])
    text, call = first.output
    assert text.type == "message" and call.type == "function_call"
    assert (call.name, call.arguments) == ("bash", '{"command":"ls  -l"}')
    history += [*echo(first), result(call, "a.txt")]
    second = await ask(client, stream, history, tools=[BASH, {"type": "web_search"}])
    assert second.output_text == "Done."
    calls = await gateway.calls()
    assert [c.finish_reason for c in calls] == ["tool_calls", "stop"]
    assert calls[1].parent_id == calls[0].call_id and calls[1].continues
    assert_tokens_hold_together(calls, gateway.engine)
    assert smollm2.decode(calls[1].new_prompt_ids).startswith("\n<|im_start|>tool\na.txt")


@pytest.mark.parametrize("stream", [True, False])
async def test_parallel_tools(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway([CALL_LS + call_text("bash", '{"command": "pwd"}'), "Both done."])
    client = await client_of(gateway)
    history: list[Any] = [{"role": "user", "content": "go"}]
    first = await ask(client, stream, history, tools=[BASH])
    calls: list[Any] = list(first.output)
    assert [call.type for call in calls] == ["function_call"] * 2 and len({call.call_id for call in calls}) == 2
    history += [*echo(first), *(result(call, call.arguments) for call in calls)]
    assert (await ask(client, stream, history, tools=[BASH])).output_text == "Both done."
    kept = await gateway.calls()
    assert kept[1].parent_id == kept[0].call_id and kept[1].continues
    assert_tokens_hold_together(kept, gateway.engine)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_custom_tool_both_ways(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway([call_text("apply_patch", '{"input": "*** \\"x\\"\\n+ü"}'), "Edited."])
    client = await client_of(gateway)
    history: list[Any] = [{"role": "user", "content": "edit"}]
    first = await ask(client, stream, history, tools=[PATCH])
    (call,) = first.output
    assert call.type == "custom_tool_call" and call.input == '*** "x"\n+ü'
    history += [*echo(first), result(call, [{"type": "input_text", "text": "ok"}])]
    assert (await ask(client, stream, history, tools=[PATCH])).output_text == "Edited."
    kept = await gateway.calls()
    assert kept[1].parent_id == kept[0].call_id and kept[1].continues
    assert_tokens_hold_together(kept, gateway.engine)


async def test_a_namespaced_tool_both_ways(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([call_text("agents__spawn", "{}"), "Spawned."])
    client = await client_of(gateway)
    history: list[Any] = [{"role": "user", "content": "help"}]
    first = await ask(client, True, history, tools=[AGENTS])
    (call,) = first.output
    assert call.type == "function_call" and (call.namespace, call.name) == ("agents", "spawn")
    history += [*echo(first), result(call, "agent 1")]
    await ask(client, True, history, tools=[AGENTS])
    kept = await gateway.calls()
    assert kept[1].parent_id == kept[0].call_id
    assert_tokens_hold_together(kept, gateway.engine)


async def test_the_events_of_a_stream(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([f"Look: {CALL_LS}"])
    stream = await (await client_of(gateway)).responses.create(
        model="polar", input="go", tools=[BASH], stream=True
    )
    found = [event async for event in stream]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    types = [event.type for event in found]
    assert types[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert types[-2:] == ["response.output_item.done", "response.completed"]
    assert types.count("response.output_item.done") == 2


async def test_heartbeats_are_events_of_the_response(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply("At last.", block_after=0)], heartbeat_s=0.05)
    stream = await (await client_of(gateway)).responses.create(model="polar", input="go", stream=True)
    beats = 0
    text = ""
    async for event in stream:
        beats += event.type == "response.in_progress"
        text += event.delta if event.type == "response.output_text.delta" else ""
        if beats == 3:
            gateway.engine.release()
    assert beats >= 3 and text == "At last."


class Weather(BaseModel):
    city: str
    degrees: int


async def test_a_reply_by_a_schema(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(['{"city": "Paris", "degrees": 21}', '{"a": 1}'])
    client = await client_of(gateway)
    reply = await client.responses.parse(model="polar", input="weather?", text_format=Weather)
    assert reply.output_parsed == Weather(city="Paris", degrees=21)
    schema = gateway.engine.requests[0].request.json_schema
    assert schema and schema["properties"].keys() == {"city", "degrees"}
    await client.responses.create(model="polar", input="other?", text={"format": {"type": "json_object"}})
    assert gateway.engine.requests[1].request.json_schema == {"type": "object"}


async def test_tokens_are_counted_before_they_are_sent(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hi."])
    client = await client_of(gateway)
    tools: Any = [BASH]
    counted = await client.responses.input_tokens.count(model="polar", input="hello", tools=tools)
    bare = await client.responses.input_tokens.count(model="polar", input="hello")
    assert counted.object == "response.input_tokens" and counted.input_tokens > bare.input_tokens > 0
    assert gateway.engine.requests == []
    reply = await client.responses.create(model="polar", input="hello", tools=tools)
    assert reply.usage and reply.usage.input_tokens == counted.input_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_is_cut_off_is_completed(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway(["A long reply that goes on and on."])
    reply = await ask(await client_of(gateway), stream, "go", max_output_tokens=3)
    assert reply.status == "completed" and reply.usage and reply.usage.output_tokens == 3
    assert reply.incomplete_details and reply.incomplete_details.reason == "max_output_tokens"


async def test_what_is_asked_is_recorded_and_the_task_decides(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hi."])
    client = await client_of(gateway)
    await client.responses.create(
        model="polar", input="go", temperature=0.2, top_p=0.5, reasoning={"effort": "high"}, store=False
    )
    request = gateway.engine.requests[0].request
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    (call,) = await gateway.calls()
    assert call.sampling["asked"] == {"temperature": 0.2, "top_p": 0.5, "reasoning": {"effort": "high"}}


class TestRefusals:
    async def test_a_refused_field_is_named_and_not_asked_again(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        client = await client_of(gateway)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="polar", input="go", previous_response_id="resp_1")
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "invalid_request")
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert gateway.engine.requests == []

    async def test_an_unknown_key(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        slot = (await gateway.open()).model_copy(update={"key": "sk-guess"})
        with pytest.raises(openai.AuthenticationError) as caught:
            await gateway.client(slot).responses.create(model="polar", input="go")
        assert caught.value.code == "invalid_api_key"

    @pytest.mark.parametrize("stream", [True, False])
    async def test_overflow_comes_as_a_status(self, open_gateway: OpenGateway, stream: bool) -> None:
        gateway = await open_gateway(["never"], context_tokens=64)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens") as caught:
            await ask(await client_of(gateway), stream, "word " * 200)
        assert caught.value.code == "context_length_exceeded"

    async def test_a_websocket_is_sent_back_to_http(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([])
        slot = await gateway.open()
        headers = {"authorization": f"Bearer {slot.key}", "connection": "upgrade", "upgrade": "websocket"}
        async with gateway.http.get(f"{slot.base_url}/v1/responses", headers=headers) as response:
            assert response.status == 426

    async def test_the_sdk_asks_again_when_the_engine_fails(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([ScriptedReply(error="gone"), "Here again."])
        reply = await (await client_of(gateway)).responses.create(model="polar", input="go")
        assert reply.output_text == "Here again." and len(gateway.engine.requests) == 2

    async def test_a_stream_that_an_engine_breaks_is_cut(self, open_gateway: OpenGateway) -> None:
        blocked = ScriptedReply("Half of a reply and more.", block_after=4, error="gone")
        gateway = await open_gateway([blocked])
        client = await client_of(gateway, max_retries=0)
        stream = await client.responses.create(model="polar", input="go", stream=True)
        found: list[Any] = []
        with pytest.raises(openai.APIConnectionError):
            async for event in stream:
                found.append(event)
                gateway.engine.release()
        assert found[-1].type == "response.output_text.delta"
        (call,) = await gateway.calls()
        assert call.finish_reason == "aborted" and not call.received
