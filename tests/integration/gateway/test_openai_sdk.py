"""OpenAI's own SDK as the harness: what its users write works against a slot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import openai
import pytest
from playbook import BASH_TOOL, Gateway, OpenGateway, assert_tokens_hold_together
from pydantic import BaseModel

from polar.engines.base import GenerateRequest, Piece
from polar.errors import EngineBusy
from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import token_ids

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: Any = [BASH_TOOL]
PATCH_TOOL: Any = {"type": "custom", "custom": {"name": "patch", "description": "Edit files."}}


def bash(command: str) -> str:
    return f'<tool_call>{{"name": "bash", "arguments": {{"command": "{command}"}}}}</tool_call>'


def result(call: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def unconstrained(gateway: Gateway) -> Gateway:
    """The same gateway, over an engine without schema-constrained decoding."""
    msgspec.structs.force_setattr(gateway.engine._info, "constrains", False)  # pyright: ignore[reportPrivateUsage]
    return gateway


class TestTools:
    async def test_a_loop_in_which_the_sdks_own_messages_go_back(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([f"Let me see. {bash('ls')}", f"Now this. {bash('größe')}", "Done."])
        chat = gateway.client(await gateway.open()).chat.completions
        messages: list[Any] = [{"role": "system", "content": "S"}, {"role": "user", "content": "go"}]
        texts: list[str | None] = []
        for output in ("a.txt", "3 Zeilen", None):
            message = (await chat.create(model="polar", messages=messages, tools=TOOLS)).choices[0].message
            texts.append(message.content and message.content.strip())
            messages.append(message)
            messages += [result(call, str(output)) for call in message.tool_calls or []]
        assert texts == ["Let me see.", "Now this.", "Done."]
        calls = await gateway.calls()
        assert [(c.finish_reason, c.continues) for c in calls] == [
            ("tool_calls", False),
            ("tool_calls", True),
            ("stop", True),
        ]
        assert_tokens_hold_together(calls, gateway.engine)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_several_calls_in_one_reply(self, open_gateway: OpenGateway, stream: bool) -> None:
        gateway = await open_gateway([f"{bash('ls')}\n{bash('pwd')}", "Done."])
        chat = gateway.client(await gateway.open()).chat.completions
        if stream:
            async with chat.stream(model="polar", messages=HELLO, tools=TOOLS) as events:
                async for _ in events:
                    pass
                choice: Any = (await events.get_final_completion()).choices[0]
        else:
            choice = (await chat.create(model="polar", messages=HELLO, tools=TOOLS)).choices[0]
        calls = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and len({call.id for call in calls}) == 2
        assert [call.function.name for call in calls] == ["bash", "bash"]
        assert [call.function.arguments for call in calls] == ['{"command": "ls"}', '{"command": "pwd"}']
        assert not choice.message.content
        echo = {
            "role": "assistant",
            "content": choice.message.content,
            "tool_calls": [call.model_dump(exclude={"index"}) for call in calls],
        }
        history = [*HELLO, echo, *(result(call, "ok") for call in calls)]
        assert (await chat.create(model="polar", messages=history, tools=TOOLS)).choices[0].finish_reason == "stop"
        assert_tokens_hold_together(await gateway.calls(), gateway.engine)

    async def test_a_custom_tool_takes_plain_text(self, open_gateway: OpenGateway) -> None:
        call_text = '<tool_call>{"name": "patch", "arguments": {"input": "+ say \\"hi\\"\\n"}}</tool_call>'
        gateway = await open_gateway([call_text, "Done."])
        chat = gateway.client(await gateway.open()).chat.completions
        message = (await chat.create(model="polar", messages=HELLO, tools=[PATCH_TOOL])).choices[0].message
        (call,) = message.tool_calls or []
        assert call.type == "custom" and (call.custom.name, call.custom.input) == ("patch", '+ say "hi"\n')
        history: list[Any] = [*HELLO, message, result(call, "patched")]
        await chat.create(model="polar", messages=history, tools=[PATCH_TOOL])
        calls = await gateway.calls()
        assert calls[1].continues and calls[1].parent_id == calls[0].call_id
        assert_tokens_hold_together(calls, gateway.engine)

    async def test_a_custom_tool_in_a_stream(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(['<tool_call>{"name": "patch", "arguments": {"input": "+x"}}</tool_call>'])
        chunks = await gateway.client(await gateway.open()).chat.completions.create(
            model="polar", messages=HELLO, tools=[PATCH_TOOL], stream=True
        )
        parts = [part async for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
        assert [part.type for part in parts] == ["custom", None] and parts[0].id
        assert [part.to_dict()["custom"] for part in parts] == [{"name": "patch", "input": ""}, {"input": "+x"}]


class TestStreaming:
    async def test_the_sdk_adds_a_stream_up(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["A reply of some words, größer than one piece of eight tokens. 🐈"])
        chat = gateway.client(await gateway.open()).chat.completions
        async with chat.stream(model="polar", messages=HELLO, stream_options={"include_usage": True}) as events:
            pieces = [event.delta async for event in events if event.type == "content.delta"]
            whole = await events.get_final_completion()
        (call,) = await gateway.calls()
        assert whole.choices[0].message.content == "".join(pieces) == call.response.content
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage and whole.usage.completion_tokens == len(call.completion_ids)
        assert whole.usage.prompt_tokens == call.prompt_tokens
        assert call.received

    async def test_capture_fields_do_not_reach_the_harness(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["Hi.", "Hi."])
        chat = gateway.client(await gateway.open()).chat.completions
        reply = await chat.create(model="polar", messages=HELLO, logprobs=True, top_logprobs=3)
        assert reply.choices[0].logprobs is None
        assert "token_ids" not in reply.to_json() and "tokens" in reply.to_json()


class Answer(BaseModel):
    number: int
    why: str


class TestStructuredOutput:
    async def test_a_pydantic_class_comes_back(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(['{"number": 4, "why": "größer"}'])
        reply = await gateway.client(await gateway.open()).chat.completions.parse(
            model="polar", messages=HELLO, response_format=Answer
        )
        assert reply.choices[0].message.parsed == Answer(number=4, why="größer")
        schema = gateway.engine.requests[0].request.json_schema
        assert schema and schema["properties"].keys() == {"number", "why"}
        (call,) = await gateway.calls()
        assert call.sampling["json_schema"] == schema

    async def test_any_object(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["{}"])
        await gateway.client(await gateway.open()).chat.completions.create(
            model="polar", messages=HELLO, response_format={"type": "json_object"}
        )
        assert gateway.engine.requests[0].request.json_schema == {"type": "object"}

    async def test_an_engine_that_cannot_says_so(self, open_gateway: OpenGateway) -> None:
        gateway = unconstrained(await open_gateway(["never"]))
        chat = gateway.client(await gateway.open()).chat.completions
        with pytest.raises(openai.BadRequestError, match="schema-constrained"):
            await chat.create(model="polar", messages=HELLO, response_format={"type": "json_object"})
        assert gateway.engine.requests == []


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_text_ends_the_reply_before_it(
    open_gateway: OpenGateway, smollm2: SmolLM2Renderer, stream: bool
) -> None:
    gateway = await open_gateway(["One. STOP Two."])
    chat = gateway.client(await gateway.open()).chat.completions
    if stream:
        chunks = await chat.create(model="polar", messages=HELLO, stop="STOP", stream=True)
        choices = [chunk.choices[0] async for chunk in chunks]
        content, finish = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
    else:
        choice = (await chat.create(model="polar", messages=HELLO, stop=["END", "STOP"])).choices[0]
        content, finish = choice.message.content or "", choice.finish_reason
    assert (content, finish) == ("One. ", "stop")
    (call,) = await gateway.calls()
    kept = smollm2.decode(call.completion_ids)
    assert kept.startswith("One. STOP") and "Two" not in kept, (
        "sampled tokens are kept, also those of the stop text"
    )


class TestCompletions:
    async def test_a_text_goes_on(self, open_gateway: OpenGateway, smollm2: SmolLM2Renderer) -> None:
        gateway = await open_gateway([" upon a time <tool_call>"])
        client = gateway.client(await gateway.open())
        reply = await client.completions.create(model="polar", prompt="Once", max_tokens=50)
        assert (reply.choices[0].text, reply.choices[0].finish_reason) == (" upon a time <tool_call>", "stop")
        (call,) = await gateway.calls()
        assert gateway.engine.requests[0].request.prompt_ids == smollm2.encode("Once") == call.new_prompt_ids
        assert reply.usage and reply.usage.completion_tokens == len(call.completion_ids)
        assert call.dialect == "openai_completions" and call.received
        assert_tokens_hold_together([call], gateway.engine)

    async def test_token_ids_are_sent_as_they_are(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["x" * 200, "b"])
        client = gateway.client(await gateway.open())
        first = await client.completions.create(model="polar", prompt=[40, 41, 42])
        await client.completions.create(model="polar", prompt=[[43, 44]], max_tokens=9)
        requests = [seen.request for seen in gateway.engine.requests]
        assert [request.prompt_ids for request in requests] == [token_ids([40, 41, 42]), token_ids([43, 44])]
        assert [request.max_tokens for request in requests] == [16, 9]
        assert first.choices[0].finish_reason == "length"

    async def test_a_stream(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([" upon a time there was a gateway, and it spoke five dialects."])
        client = gateway.client(await gateway.open())
        stream = await client.completions.create(
            model="polar", prompt="Once", max_tokens=99, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].text for chunk in chunks)
        assert text == " upon a time there was a gateway, and it spoke five dialects."
        assert chunks[-1].choices[0].finish_reason == "stop"
        (call,) = await gateway.calls()
        assert last.usage and last.usage.completion_tokens == len(call.completion_ids) and call.received

    async def test_two_prompts_are_two_sessions(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.client(await gateway.open()).completions.create(model="polar", prompt=["a", "b"])
        assert caught.value.param == "prompt" and gateway.engine.requests == []


class TestErrors:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_engine_that_fails_once_is_asked_again(self, open_gateway: OpenGateway, stream: bool) -> None:
        gateway = await open_gateway([ScriptedReply(error="busy"), "Better."])
        chat: Any = gateway.client(await gateway.open()).chat.completions
        reply = await chat.create(model="polar", messages=HELLO, stream=stream)
        if stream:
            content = "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
        else:
            content = reply.choices[0].message.content
        assert content == "Better." and len(gateway.engine.requests) == 2
        assert [call.received for call in await gateway.calls()][-1]

    async def test_a_stream_that_breaks_is_a_lost_connection(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(
            [ScriptedReply(text="A beginning of some length, then nothing.", error="gone"), "Whole."]
        )
        chat = gateway.client(await gateway.open()).chat.completions
        stream = await chat.create(model="polar", messages=HELLO, stream=True)
        with pytest.raises(openai.APIConnectionError):
            async for _ in stream:
                pass
        again = await chat.create(model="polar", messages=HELLO, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in again]) == "Whole."
        assert [(c.finish_reason, c.received) for c in await gateway.calls()] == [
            ("aborted", False),
            ("stop", True),
        ]

    async def test_a_busy_engine_says_when_to_come_back(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway([])

        async def busy(_: GenerateRequest) -> AsyncGenerator[Piece]:
            raise EngineBusy("all places are taken", retry_after_s=3.0)
            yield

        gateway.engine.generate = busy  # type: ignore[method-assign]
        chat = gateway.client(await gateway.open(), max_retries=0).chat.completions
        with pytest.raises(openai.RateLimitError) as caught:
            await chat.create(model="polar", messages=HELLO)
        assert caught.value.response.headers["retry-after"] == "3"

    async def test_an_overflow_is_answered_once(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"], context_tokens=200)
        long: list[Any] = [{"role": "user", "content": "word " * 400}]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 200 tokens") as caught:
            await gateway.client(await gateway.open()).chat.completions.create(model="polar", messages=long)
        assert caught.value.code == "context_length_exceeded"
        assert gateway.engine.requests == [] and await gateway.calls() == []

    async def test_a_wrong_key(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        slot = (await gateway.open()).model_copy(update={"key": "sk-guess"})
        client = gateway.client(slot)
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="polar", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model="polar", prompt="x")

    async def test_an_image_for_a_model_that_cannot_see(self, open_gateway: OpenGateway) -> None:
        gateway = await open_gateway(["never"])
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}]
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.client(await gateway.open()).chat.completions.create(model="polar", messages=messages)
        assert caught.value.param == "messages[0].content[1]" and gateway.engine.requests == []


async def test_the_model_is_listed_with_its_context(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([], context_tokens=4096)
    models = gateway.client(await gateway.open()).models
    assert [(m.id, m.to_dict()["max_model_len"]) async for m in models.list()] == [("polar", 4096)]
    assert (await models.retrieve("polar")).object == "model"
    with pytest.raises(openai.NotFoundError):
        await models.retrieve("another")
