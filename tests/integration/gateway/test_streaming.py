"""Streams in all four dialects: what is sampled is in the harness's hands while the engine is still at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
from playbook import Gateway, OpenGateway, assert_tokens_hold_together

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Slot, TokenIds
from waiting import hang_limit

TEXT = "The first words are here long before the last ones."
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

Payload = dict[str, Any]


class Wire(NamedTuple):
    """How one dialect asks for a stream, and where its events keep things."""

    path: str
    body: Payload
    tools: Payload
    text: Callable[[Payload], str]
    is_heartbeat: Callable[[Payload], bool]
    is_end: Callable[[Payload], bool]


def _chat_text(event: Payload) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _google_text(event: Payload) -> str:
    parts = [part for c in event.get("candidates", ()) for part in c.get("content", {}).get("parts", ())]
    return "".join(part.get("text", "") for part in parts)


WIRES = {
    "openai_chat": Wire(
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True},
        {"tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}]},
        _chat_text,
        lambda event: event["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}],
        lambda event: any(choice["finish_reason"] for choice in event["choices"]),
    ),
    "anthropic": Wire(
        "/v1/messages?beta=true",
        {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Go."}], "stream": True},
        {"tools": [{"name": "bash", "input_schema": SCHEMA}]},
        lambda event: event.get("delta", {}).get("text", ""),
        lambda event: event["type"] == "ping",
        lambda event: event["type"] == "message_stop",
    ),
    "openai_responses": Wire(
        "/v1/responses",
        {"model": "m", "input": "Go.", "stream": True},
        {"tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}]},
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        lambda event: event["type"] == "response.in_progress" and event["sequence_number"] > 1,
        lambda event: event["type"] == "response.completed",
    ),
    "google": Wire(
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]},
        {"tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}]},
        _google_text,
        lambda event: not _google_text(event) and "finishReason" not in orjson.dumps(event).decode(),
        lambda event: any("finishReason" in c for c in event.get("candidates", ())),
    ),
}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


class Listener:
    """A client that reads events one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
        self.response = response
        self.events: list[Payload] = []

    async def hear(self, enough: Callable[[list[Payload]], bool]) -> list[Payload]:
        async with hang_limit():
            while not enough(self.events):
                line = await self.response.content.readline()
                assert line, "the stream ended before that"
                if line.startswith(b"data: {"):
                    self.events.append(orjson.loads(line[6:]))
        return self.events

    async def hear_all(self) -> list[Payload]:
        async for line in self.response.content:
            if line.startswith(b"data: {"):
                self.events.append(orjson.loads(line[6:]))
        return self.events


async def listen(gateway: Gateway, slot: Slot, wire: Wire, **more: Any) -> Listener:
    headers = {"authorization": f"Bearer {slot.key}"}
    return Listener(
        await gateway.http.post(slot.base_url + wire.path, json={**wire.body, **more}, headers=headers)
    )


def said(wire: Wire, events: list[Payload]) -> str:
    return "".join(map(wire.text, events))


async def test_the_text_up_to_token_k_is_there_while_the_engine_waits_after_it(
    open_gateway: OpenGateway, wire: Wire
) -> None:
    gateway = await open_gateway([ScriptedReply(text=TEXT, block_after=6)])
    listener = await listen(gateway, await gateway.open(), wire)
    sampled = gateway.engine.encoder.decode(gateway.engine.requests[0].completion_ids)
    assert gateway.engine.active == 1 and TEXT.startswith(sampled) and len(sampled) > 10
    # All but white space at its end, of which it is not known yet whether it is text.
    await listener.hear(lambda events: said(wire, events) == sampled.rstrip())
    assert gateway.engine.active == 1
    gateway.engine.release()
    events = await listener.hear_all()
    assert said(wire, events) == TEXT and wire.is_end(events[-1])
    (call,) = await gateway.calls()
    assert call.received and call.response.content == TEXT
    assert_tokens_hold_together([call], gateway.engine)


async def test_a_call_goes_out_while_the_next_one_is_sampled(
    open_gateway: OpenGateway, wire: Wire, smollm2: SmolLM2Renderer
) -> None:
    first = smollm2._vocabulary.encode(f"Looking.\n{CALL}")  # pyright: ignore[reportPrivateUsage]
    gateway = await open_gateway([ScriptedReply(text=f"Looking.\n{CALL}\n{CALL}", block_after=len(first) + 4)])
    listener = await listen(gateway, await gateway.open(), wire, **wire.tools)
    await listener.hear(lambda events: "ls -la" in orjson.dumps(events).decode())
    assert gateway.engine.active == 1 and said(wire, listener.events) == "Looking."
    gateway.engine.release()
    assert orjson.dumps(await listener.hear_all()).decode().count("ls -la") >= 2


async def test_it_begins_at_once_and_is_kept_awake_in_the_dialects_own_way(
    open_gateway: OpenGateway, wire: Wire
) -> None:
    gateway = await open_gateway([ScriptedReply(text=TEXT, block_after=0)], heartbeat_s=0.05)
    listener = await listen(gateway, await gateway.open(), wire)
    await listener.hear(lambda events: sum(map(wire.is_heartbeat, events)) >= 3)
    assert said(wire, listener.events) == "" and gateway.engine.active == 1
    gateway.engine.release()
    assert said(wire, await listener.hear_all()) == TEXT


async def test_no_comment_is_ever_sent(open_gateway: OpenGateway, wire: Wire) -> None:
    gateway = await open_gateway([ScriptedReply(text=TEXT, block_after=3)], heartbeat_s=0.05)
    listener = await listen(gateway, await gateway.open(), wire)
    await asyncio.sleep(0.2)
    gateway.engine.release()
    assert not any(line.startswith(b":") for line in (await listener.response.read()).splitlines())


async def test_a_failure_at_once_is_a_status(open_gateway: OpenGateway, wire: Wire) -> None:
    gateway = await open_gateway([ScriptedReply(error="no memory"), ScriptedReply(busy_s=3.0)])
    slot = await gateway.open()
    headers = {"authorization": f"Bearer {slot.key}"}
    async with gateway.http.post(slot.base_url + wire.path, json=wire.body, headers=headers) as failed:
        assert failed.status in (500, 502, 503) and failed.headers["x-should-retry"] == "true"
    async with gateway.http.post(slot.base_url + wire.path, json=wire.body, headers=headers) as busy:
        assert (busy.status, busy.headers["retry-after"]) == (429, "3")


async def test_a_failure_half_way_never_looks_like_an_end(open_gateway: OpenGateway, wire: Wire) -> None:
    gateway = await open_gateway([ScriptedReply(text=TEXT, block_after=4, error="no memory"), TEXT])
    slot = await gateway.open()
    listener = await listen(gateway, slot, wire)
    await listener.hear(lambda events: bool(said(wire, events)))
    gateway.engine.release()
    try:
        events = await listener.hear_all()
    except aiohttp.ClientPayloadError:  # some dialects end a broken reply by a cut
        events = listener.events
    listener.response.close()
    assert not any(wire.is_end(event) for event in events if "error" not in event)
    # The harness asks again and gets a whole reply; the broken one is kept, and not trained on.
    assert said(wire, await (await listen(gateway, slot, wire)).hear_all()) == TEXT
    broken, whole = await gateway.calls()
    assert (broken.finish_reason, broken.received) == ("aborted", False) and whole.received


class WholeOnly:
    """A renderer of a family whose replies can be read only when they are whole."""

    takes_images = False

    def __init__(self, inner: SmolLM2Renderer) -> None:
        self.stop_ids, self._vocabulary = inner.stop_ids, inner._vocabulary  # pyright: ignore[reportPrivateUsage]
        self.render, self.bridge, self.parse, self.decode = inner.render, inner.bridge, inner.parse, inner.decode

    def retaining(self, _: str) -> WholeOnly:
        return self

    def reader(self, _: TokenIds, *, calls: bool = True) -> None:
        return None


async def test_a_family_that_is_read_as_a_whole_is_streamed_as_a_whole(
    open_gateway: OpenGateway, wire: Wire, smollm2: SmolLM2Renderer
) -> None:
    script = [ScriptedReply(text=f"{TEXT} {CALL}", block_after=6)]
    gateway = await open_gateway(script, renderer=WholeOnly(smollm2), heartbeat_s=0.05)
    listener = await listen(gateway, await gateway.open(), wire, **wire.tools)
    await listener.hear(lambda events: any(map(wire.is_heartbeat, events)))
    assert said(wire, listener.events) == ""
    gateway.engine.release()
    assert said(wire, await listener.hear_all()).strip() == TEXT
    (call,) = await gateway.calls()
    assert call.received and call.response.tool_calls
