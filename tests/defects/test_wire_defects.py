"""What harnesses must hear and not hear, each with the defect of published systems that it rules out."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import test_utils, web
from playbook import BASH_TOOL, Gateway, OpenGateway

from polar.engines.remote.server import RemoteServer
from polar.testing import ScriptedReply
from polar.types import Policy, Slot
from waiting import hang_limit, until

GO: list[Any] = [{"role": "user", "content": "go"}]
GOOGLE_GO: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "go"}]}]}
MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 32, "messages": GO}


async def events_of(gateway: Gateway, slot: Slot, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {slot.key}"}
    async with gateway.http.post(slot.base_url + path, json=body, headers=headers) as response:
        lines = (await response.read()).splitlines()
    data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
    return [orjson.loads(line) for line in data]


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/v1/messages/count_tokens", {"model": "m", "messages": GO}, "input_tokens"),
        ("/v1beta/models/m:countTokens", GOOGLE_GO, "totalTokens"),
    ],
)
async def test_counting_tokens_samples_none(
    open_gateway: OpenGateway, path: str, body: dict[str, Any], counted: str
) -> None:
    """14: any POST was a generation, so that counting tokens was sampled and recorded."""
    gateway = await open_gateway(["never"])
    status, answer, _ = await gateway.post(await gateway.open(), body, path)
    assert status == 200 and answer[counted] > 0
    assert gateway.engine.requests == [] and await gateway.calls() == []


async def test_a_stream_says_how_long_its_prompt_was(open_gateway: OpenGateway) -> None:
    """15: streams reported a prompt of 0 tokens, and harnesses never compacted."""
    gateway = await open_gateway(["Hi."])
    events = await events_of(gateway, await gateway.open(), "/v1/messages", {**MESSAGES, "stream": True})
    (call,) = await gateway.calls()
    assert events[0]["message"]["usage"]["input_tokens"] == call.prompt_tokens > 0


async def test_the_first_words_come_while_the_rest_is_sampled(open_gateway: OpenGateway) -> None:
    """16: a whole turn was held back, and clients gave up and asked again."""
    gateway = await open_gateway([ScriptedReply(text="The first words and then the last ones.", block_after=4)])
    slot = await gateway.open()
    headers = {"authorization": f"Bearer {slot.key}"}
    body = {"messages": GO, "stream": True}
    async with (
        hang_limit(),
        gateway.http.post(f"{slot.base_url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        heard = b""
        while b"first" not in heard:
            heard += await response.content.readany()
        assert gateway.engine.active == 1
        gateway.engine.release()
        heard += await response.read()
    assert b"last" in heard


async def test_a_silent_stream_is_kept_awake(open_gateway: OpenGateway) -> None:
    """16: no sign of life while the engine was at work."""
    gateway = await open_gateway([ScriptedReply(text="late", block_after=0)], heartbeat_s=0.02)
    slot = await gateway.open()
    headers = {"authorization": f"Bearer {slot.key}"}
    async with (
        hang_limit(),
        gateway.http.post(
            f"{slot.base_url}/v1/messages", json={**MESSAGES, "stream": True}, headers=headers
        ) as response,
    ):
        heard = b""
        while heard.count(b'"ping"') < 2:
            heard += await response.content.readany()
        gateway.engine.release()
        await response.read()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "word"),
    [("/v1/messages", "prompt is too long"), ("/v1/chat/completions", "context_length_exceeded")],
)
async def test_a_prompt_that_is_too_long_is_refused_in_the_providers_words(
    open_gateway: OpenGateway, path: str, word: str, stream: bool
) -> None:
    """17: an overflow was not mapped for streams, nor for one dialect at all, so harnesses did not compact."""
    gateway = await open_gateway(["never"], context_tokens=64)
    body = {**MESSAGES, "messages": [{"role": "user", "content": "word " * 200}], "stream": stream}
    status, answer, _ = await gateway.post(await gateway.open(), body, path)
    assert status == 400 and word in orjson.dumps(answer).decode()


async def test_a_call_that_cannot_be_read_is_the_same_with_and_without_streaming(
    open_gateway: OpenGateway,
) -> None:
    """17: bad arguments were `{}` in one mode and raw text in the other."""
    broken = '<tool_call>{"name": "bash", "arguments": {oops}}</tool_call>'
    gateway = await open_gateway([broken, broken])
    slot = await gateway.open()
    body = {"messages": GO, "tools": [BASH_TOOL]}
    _, whole, _ = await gateway.post(slot, body)
    events = await events_of(gateway, slot, "/v1/chat/completions", {**body, "stream": True})
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert whole["choices"][0]["message"]["content"] == broken
    assert "".join(delta.get("content") or "" for delta in deltas) == broken
    assert not any(delta.get("tool_calls") for delta in deltas)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_what_is_captured_is_not_told_to_the_harness(open_gateway: OpenGateway, path: str) -> None:
    """17: ids and logprobs leaked into replies, and from there into histories."""
    gateway = await open_gateway(["Hi."])
    body = {"input": GO} if path.endswith("responses") else MESSAGES
    status, answer, _ = await gateway.post(await gateway.open(), body, path)
    assert status == 200
    text = orjson.dumps(answer).decode()
    assert not any(name in text for name in ("token_ids", "prompt_ids", "completion_ids", "policy_version"))


async def test_an_unknown_key_opens_nothing(open_gateway: OpenGateway) -> None:
    """18: any key opened a session, with free inference."""
    gateway = await open_gateway(["never"])
    stranger = (await gateway.open()).model_copy(update={"key": "sk-stranger"})
    assert (await gateway.post(stranger, {"messages": GO}))[0] == 401
    assert gateway.engine.requests == [] and await gateway.calls() == []


class TestUpstream:
    async def test_a_busy_engine_is_reported_as_such_and_retried(self, open_gateway: OpenGateway) -> None:
        """19: a busy engine failed the call for good."""
        gateway = await open_gateway([ScriptedReply(busy_s=0.01), "Hi."])
        client = gateway.client(await gateway.open(), max_retries=2)
        reply = await client.chat.completions.create(model="polar", messages=GO)
        assert reply.choices[0].message.content == "Hi."
        assert [call.finish_reason for call in await gateway.calls()] == ["stop"]

    async def test_many_calls_are_under_way_at_once(self) -> None:
        """19: a hundred connections were all there were, and the rest waited until it was too late."""
        at_once, all_there, wanted = 0, asyncio.Event(), 120

        async def hold(_: web.Request) -> web.Response:
            nonlocal at_once
            at_once += 1
            if at_once == wanted:
                all_there.set()
            await all_there.wait()
            return web.json_response({})

        app = web.Application()
        app.router.add_post("/x", hold)
        async with test_utils.TestServer(app) as served:
            remote = RemoteServer("an engine", "", str(served.make_url("")))
            try:
                async with hang_limit():
                    await asyncio.gather(*(remote.post("/x", {}, dict[str, int]) for _ in range(wanted)))
            finally:
                await remote.close()

    async def test_a_pause_ends_with_the_next_word_on_the_policy(self, open_gateway: OpenGateway) -> None:
        """19: after a pause that failed half-way a node stayed paused."""
        gateway = await open_gateway(["Hi."])
        slot = await gateway.open()
        gateway.gate.set(Policy(version="v1", paused=True))
        waiting = asyncio.create_task(gateway.post(slot, {"messages": GO}))
        await until(lambda: gateway.slots._by_session["s1"]._active)
        assert gateway.engine.requests == []
        gateway.gate.set(Policy(version="v1"))
        assert (await waiting)[0] == 200

    async def test_a_session_keeps_one_engine(self, open_gateway: OpenGateway) -> None:
        """19: replicas in turn, so that no prefix cache ever held what came next."""
        gateway = await open_gateway(["One.", "Two."])
        slot = await gateway.open()
        _, first, _ = await gateway.post(slot, {"messages": GO})
        echo = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        await gateway.post(slot, {"messages": [*GO, echo, *GO]})
        one, two = gateway.engine.requests
        assert one.request.session_id == two.request.session_id, "what a router can go by"
        assert two.cached_tokens == len(one.whole)
