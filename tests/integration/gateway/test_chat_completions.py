"""Playbooks: the harness sends, the engine receives and sends, the harness receives, the store holds."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI
from playbook import BASH_TOOL, OpenGateway, assert_tokens_hold_together

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import CallProfile

CALL_LS = '<tool_call>{"name": "bash", "arguments": {"command":"ls  -l"}}</tool_call>'
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


async def collect(client: AsyncOpenAI, messages: list[Any], **options: Any) -> dict[str, Any]:
    """A streamed reply put together as an SDK user would."""
    stream = await client.chat.completions.create(model="polar", messages=messages, stream=True, **options)
    whole: dict[str, Any] = {"content": "", "calls": {}, "finish": None, "usage": None, "chunks": 0}
    async for chunk in stream:
        whole["chunks"] += 1
        whole["usage"] = chunk.usage or whole["usage"]
        for choice in chunk.choices:
            whole["content"] += choice.delta.content or ""
            whole["finish"] = choice.finish_reason or whole["finish"]
            for part in choice.delta.tool_calls or []:
                call = whole["calls"].setdefault(part.index, {"id": part.id, "name": "", "arguments": ""})
                call["name"] += (part.function and part.function.name) or ""
                call["arguments"] += (part.function and part.function.arguments) or ""
    return whole


async def test_a_plain_reply(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello to you."])
    client = gateway.client(await gateway.open())
    reply = await client.chat.completions.create(model="polar", messages=HELLO)
    assert reply.choices[0].message.content == "Hello to you."
    assert reply.choices[0].finish_reason == "stop"
    (call,) = await gateway.calls()
    assert reply.usage and reply.usage.prompt_tokens == call.prompt_tokens
    assert reply.usage.completion_tokens == len(call.completion_ids) == len(call.logprobs)
    assert call.received and call.parent_id is None and call.dialect == "openai_chat"
    assert call.completion_ids.tolist() == gateway.engine.requests[0].completion_ids


async def test_a_streamed_reply_with_usage(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello to you."])
    client = gateway.client(await gateway.open())
    reply = await collect(client, HELLO, stream_options={"include_usage": True})
    assert (reply["content"], reply["finish"]) == ("Hello to you.", "stop")
    (call,) = await gateway.calls()
    assert reply["usage"].completion_tokens == len(call.completion_ids)
    assert call.received


async def test_without_asking_there_is_no_usage_in_a_stream(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hi."])
    assert (await collect(gateway.client(await gateway.open()), HELLO))["usage"] is None


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_keeps_the_sampled_tokens(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer, stream: bool
) -> None:
    gateway = await open_gateway([f"Let me see. {CALL_LS}", "Done."])
    client = gateway.client(await gateway.open())
    tools: Any = [BASH_TOOL]
    history: list[Any] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    if stream:
        first = await collect(client, history, tools=tools)
        tool_call = first["calls"][0]
    else:
        message = (await client.chat.completions.create(model="m", messages=history, tools=tools)).choices[0]
        assert message.finish_reason == "tool_calls" and message.message.tool_calls
        sdk_call: Any = message.message.tool_calls[0]
        tool_call = {"id": sdk_call.id, "name": sdk_call.function.name, "arguments": sdk_call.function.arguments}
    assert (tool_call["name"], tool_call["arguments"]) == ("bash", '{"command":"ls  -l"}')
    # The harness formats the arguments anew, as JavaScript harnesses do.
    echo = {
        "id": tool_call["id"],
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls  -l"}'},
    }
    history += [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [echo]},
        {"role": "tool", "tool_call_id": tool_call["id"], "content": "a.txt"},
    ]
    second = await client.chat.completions.create(model="polar", messages=history, tools=tools)
    assert second.choices[0].message.content == "Done."
    calls = await gateway.calls()
    assert [c.finish_reason for c in calls] == ["tool_calls", "stop"]
    assert calls[1].parent_id == calls[0].call_id and calls[1].continues
    assert calls[1].tolerant == ("whitespace", "arguments_reformatted") or calls[1].tolerant == (
        "arguments_reformatted",
    )
    assert_tokens_hold_together(calls, gateway.engine)
    assert smollm2.decode(calls[1].new_prompt_ids).startswith("\n<|im_start|>tool\na.txt")


async def test_sessions_do_not_see_each_other(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["One.", "Two."])
    one, two = await gateway.open("one"), await gateway.open("two")
    for slot in (one, two):
        await gateway.client(slot).chat.completions.create(model="polar", messages=HELLO)
    assert [len(await gateway.calls(name)) for name in ("one", "two")] == [1, 1]
    assert [r.request.session_id for r in gateway.engine.requests] == ["one", "two"]


async def test_the_task_decides_how_is_sampled(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["A long reply that goes on and on."])
    slot = await gateway.open(sampling={"max_tokens": 5, "seed": 7})
    reply = await gateway.client(slot).chat.completions.create(
        model="polar", messages=HELLO, temperature=0.2, top_p=0.5, max_completion_tokens=100
    )
    assert reply.choices[0].finish_reason == "length"
    request = gateway.engine.requests[0].request
    assert (request.sampling.temperature, request.sampling.top_p, request.max_tokens) == (1.0, 1.0, 5)
    (call,) = await gateway.calls()
    assert call.sampling["asked"] == {"temperature": 0.2, "top_p": 0.5}
    assert call.sampling["seed"] == request.seed and request.seed is not None
    assert len(call.completion_ids) == 5


async def test_a_harness_may_ask_for_less(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["A long reply that goes on and on."])
    slot = await gateway.open(sampling={"max_tokens": 5})
    await gateway.client(slot).chat.completions.create(model="polar", messages=HELLO, max_tokens=3)
    assert gateway.engine.requests[0].request.max_tokens == 3


async def test_a_call_without_tools_can_be_auxiliary(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["A title", CALL_LS])
    client = gateway.client(await gateway.open(profile=CallProfile(kind_without_tools="auxiliary")))
    tools: Any = [BASH_TOOL]
    await client.chat.completions.create(model="polar", messages=HELLO)
    await client.chat.completions.create(model="polar", messages=HELLO, tools=tools)
    assert [c.kind for c in await gateway.calls()] == ["auxiliary", "agent"]


async def test_parallel_calls_of_one_session_are_siblings(open_gateway: OpenGateway) -> None:
    import asyncio

    gateway = await open_gateway(lambda turn, prompt: f"Reply {turn}.")
    client = gateway.client(await gateway.open())
    questions: list[Any] = [[{"role": "user", "content": f"question {n}"}] for n in range(6)]
    replies = await asyncio.gather(*(client.chat.completions.create(model="polar", messages=q) for q in questions))
    assert len({r.choices[0].message.content for r in replies}) == 6
    calls = await gateway.calls()
    assert len({c.call_id for c in calls}) == 6 and all(c.received for c in calls)


async def test_models_are_listed_for_a_session(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    client = gateway.client(await gateway.open())
    assert [m.id async for m in client.models.list()] == ["polar"]
