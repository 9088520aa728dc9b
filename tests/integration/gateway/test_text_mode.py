"""Text mode: an endpoint without token ids behind the gateway, in every dialect toward the harness."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dialect_clients import DIALECT_CLIENTS, DialectClient
from playbook import BASH_TOOL, Gateway

from fake_endpoint import KEY, KEY_VARIABLE, Answer, Answers, FakeEndpoint, fake_endpoint
from polar import registry
from polar.audit.certificate import certify
from polar.config import GatewayConfig
from polar.engines.endpoint.engine import EndpointEngine, EndpointOptions
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.text_mode import TextMode
from polar.gateway.calls.threads import CallThreads
from polar.gateway.http.handler import Service
from polar.gateway.http.routes import gateway_app
from polar.gateway.http.server import GatewayServer
from polar.gateway.slots import SlotTable
from polar.store.journal import Journal
from polar.types import NO_TOKEN_IDS, Call, EndpointUsage, Spec, TrajectoryStatistics

HELLO: list[Any] = [{"role": "user", "content": "What is in the harbour?"}]
LOOK = Answer("I look.", calls=(("bash", '{"command": "ls"}'),))
OpenText = Callable[..., Awaitable[tuple[Gateway, FakeEndpoint]]]


@pytest.fixture(params=["openai", "anthropic"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def open_text(api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[OpenText]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with AsyncExitStack() as stack:

        async def open_one(answers: Answers, **options: Any) -> tuple[Gateway, FakeEndpoint]:
            fake = await stack.enter_async_context(fake_endpoint(answers))
            engine = EndpointEngine(EndpointOptions.model_validate(fake.options(api, **options)))
            stack.push_async_callback(engine.stop)
            return await text_gateway(stack, tmp_path, engine), fake

        yield open_one


async def text_gateway(stack: AsyncExitStack, folder: Path, engine: EndpointEngine) -> Gateway:
    info, gate, settings = await engine.start(), PolicyGate(), GatewayConfig(heartbeat_s=30.0)
    journal = await stack.enter_async_context(await Journal.open(folder / "journal.db"))
    slots = SlotTable(journal, "polar", info.context_tokens)
    service = CallService(TextMode(engine, info), gate, info, journal, "polar")
    server = GatewayServer(gateway_app(Service(slots, service, settings, CallThreads())), settings)
    slots.base_url, slots.listeners = server.base_url, server.listeners
    await server.start()
    stack.push_async_callback(server.stop)
    http = await stack.enter_async_context(aiohttp.ClientSession())
    unused: Any = None
    return Gateway(slots, journal, unused, http, stack, gate, service, unused)


def assert_untrainable(calls: list[Call]) -> None:
    """No call has ids or logprobs, and no builder makes a trace of them."""
    for call in calls:
        assert call.usage is not None and call.logprob_mode == "none"
        assert (len(call.completion_ids), len(call.logprobs), call.prompt_tokens) == (0, 0, 0)
    for name in ("prefix_merging", "per_request", "tree"):
        trajectory = registry.make("builder", Spec(name=name)).build("s1", calls)
        assert trajectory.traces == () and certify(calls, trajectory).findings == 0
        assert {drop.reason for drop in trajectory.dropped} == {NO_TOKEN_IDS}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_every_dialect_gets_the_reply(open_text: OpenText, dialect: DialectClient, stream: bool) -> None:
    gateway, fake = await open_text([Answer("Two boats."), Answer("A hill.")])
    slot = await gateway.open()
    for turns in (["What is there?"], ["What is there?", "Two boats.", "And behind?"]):
        status, body = await dialect.ask(gateway, slot, dialect.body(turns, stream=stream), stream=stream)
        assert status == 200
        assert (b"oats." if len(turns) == 1 else b"ill.") in body, "the second half of the text"
    first, second = await gateway.calls()
    assert second.parent_id == first.call_id and second.break_reason == NO_TOKEN_IDS
    assert [message.content for message in (*first.new_messages, first.response)] == [
        "What is there?",
        "Two boats.",
    ]
    assert second.response.content == "A hill." and first.received and second.received
    assert len(fake.bodies[1]["messages"]) == 3
    assert_untrainable([first, second])


async def test_a_tool_call_goes_round(open_text: OpenText) -> None:
    gateway, fake = await open_text([LOOK, Answer("Two boats.", reasoning="I see.")])
    client = gateway.client(await gateway.open())
    reply = await client.chat.completions.create(model="polar", messages=HELLO, tools=[BASH_TOOL])
    said: Any = reply.choices[0].message.model_dump(exclude_none=True)
    assert reply.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "boats.txt"}
    last = await client.chat.completions.create(
        model="polar", messages=[*HELLO, said, result], tools=[BASH_TOOL], stream=False
    )
    assert last.choices[0].message.content == "Two boats."
    calls = await gateway.calls()
    assert calls[1].parent_id == calls[0].call_id and calls[1].response.reasoning == "I see."
    assert json.dumps(fake.bodies[1]).count(said["tool_calls"][0]["id"]) == 2, "the call and its result agree"
    assert_untrainable(calls)


async def test_tokens_are_those_the_endpoint_counts(open_text: OpenText) -> None:
    gateway, _ = await open_text([Answer("Two boats."), Answer("A hill.", counts=False)])
    client = gateway.client(await gateway.open())
    reply = await client.chat.completions.create(model="polar", messages=HELLO)
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    counted = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
    assert (*counted, reply.usage.prompt_tokens_details.cached_tokens) == (30, 7, 10)
    await client.chat.completions.create(model="polar", messages=[{"role": "user", "content": "And behind it?"}])
    first, second = await gateway.calls()
    assert first.usage is not None and (first.usage.prompt_tokens, first.usage.completion_tokens) == (30, 7)
    assert first.evaluated_tokens == 20 and second.usage == EndpointUsage()
    trajectory = registry.make("builder", Spec(name="prefix_merging")).build("s1", [first, second])
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics)
    assert (statistics.calls, statistics.sampled_tokens, statistics.reported_tokens) == (2, 0, 7)
    assert statistics.dropped == {NO_TOKEN_IDS: 0}


async def test_budgets_hold(open_text: OpenText, api: str) -> None:
    gateway, fake = await open_text([Answer("Two boats."), Answer("A hill.")])
    slot = await gateway.open(budgets={"max_tokens": 9})
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200
    assert (await gateway.post(slot, {"messages": [{"role": "user", "content": "On."}]}))[0] == 200
    limit = "max_tokens" if api == "anthropic" else "max_completion_tokens"
    assert [body[limit] for body in fake.bodies] == [9, 2]
    status, body, _ = await gateway.post(slot, {"messages": [{"role": "user", "content": "More."}]})
    assert status == 400 and "max_tokens" in body["error"]["message"]


async def test_what_the_endpoint_refuses_reaches_the_harness_in_its_dialect(open_text: OpenText) -> None:
    too_long = Answer(status=400, error={"message": "prompt is too long: 9 tokens > 8 maximum"})
    bad, down = Answer(status=400, error={"message": "bad ids"}), Answer(status=502, error={"message": "down"})
    busy = Answer(status=429, error={"message": "slow down"}, retry_after="3")
    gateway, _ = await open_text([too_long, bad, down, busy])
    slot = await gateway.open()
    replies = [await gateway.post(slot, {"messages": [*HELLO, *HELLO[:n]]}) for n in (0, 1)]
    assert [(status, body["error"]["code"]) for status, body, _ in replies] == [
        (400, "context_length_exceeded"),
        (400, "not_renderable"),
    ]
    for expected in (502, 429):
        status, _, headers = await gateway.post(slot, {"messages": [{"role": "user", "content": str(expected)}]})
        assert (status, headers["x-should-retry"]) == (expected, "true")
    assert headers["retry-after"] == "3"
    assert await gateway.calls() == []
    assert gateway.slots.outcome("s1").failures[0].where == "engine"


async def test_a_reply_that_breaks_off_is_kept_as_aborted(open_text: OpenText) -> None:
    gateway, _ = await open_text([Answer("Two bo", breaks_off=True)])
    slot = await gateway.open()
    status, _, _ = await gateway.post(slot, {"messages": HELLO})
    (call,) = await gateway.calls()
    assert status == 502 and (call.finish_reason, call.response.content) == ("aborted", "Two bo")
    assert_untrainable([call])


async def test_prompts_that_a_harness_rendered_are_refused(open_text: OpenText) -> None:
    gateway, _ = await open_text([])
    status, body, _ = await gateway.post(await gateway.open(), {"prompt": "Once"}, "/v1/completions")
    assert status == 400 and "send messages" in body["error"]["message"]
