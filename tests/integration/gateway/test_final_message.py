"""A budget that is used up, told to the harness as a last message instead of an error."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from dialect_clients import DIALECT_CLIENTS, DialectClient
from playbook import OpenGateway

from polar.gateway.calls.final_message import MOST_FINAL_MESSAGES

FINAL = {"max_calls": 1, "on_exhausted": "final_message"}
LAST = b"I stop here: the budget of this session is used up (max_calls)."
ENDS = {
    "anthropic": b'"stop_reason":"end_turn"',
    "openai_chat": b'"finish_reason":"stop"',
    "openai_responses": b'"status":"completed"',
    "google": b'"finishReason":"STOP"',
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_the_last_message_ends_as_any_reply_does(
    open_gateway: OpenGateway, dialect: DialectClient, stream: bool
) -> None:
    gateway = await open_gateway(["One."])
    slot = await gateway.open(budgets=FINAL)
    for turns in (["go"], ["go", "One.", "on"]):
        status, reply = await dialect.ask(gateway, slot, dialect.body(turns, stream=stream), stream=stream)
        assert status == 200 and ENDS[dialect.name] in reply
    assert LAST in reply and b"1final" in reply
    assert len(gateway.engine.requests) == 1, "the engine did not sample it"
    (call,) = await gateway.calls()
    assert call.received and gateway.slots.outcome("s1").exhausted == "max_calls"
    assert gateway.slots.outcome("s1").failures == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_harness_that_never_ends_is_refused_at_last(open_gateway: OpenGateway, stream: bool) -> None:
    gateway = await open_gateway(["One."])
    slot = await gateway.open(budgets=FINAL)
    chat = DIALECT_CLIENTS[1]
    statuses: list[int] = []
    for number in range(MOST_FINAL_MESSAGES + 3):
        body = chat.body([f"go {number}"], stream=stream)
        statuses.append((await chat.ask(gateway, slot, body, stream=stream))[0])
    assert statuses == [200] * (MOST_FINAL_MESSAGES + 1) + [400, 400]
    assert len(await gateway.calls()) == 1


async def test_the_tokens_of_a_session_can_run_out_too(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["One two three four five six seven."])
    slot = await gateway.open(budgets={"max_tokens": 3, "on_exhausted": "final_message"})
    chat = DIALECT_CLIENTS[1]
    await chat.ask(gateway, slot, chat.body(["go"]))
    status, reply = await chat.ask(gateway, slot, chat.body(["on"]))
    assert status == 200 and b"used up (max_tokens)" in reply
    assert orjson.loads(reply)["usage"]["completion_tokens"] == 0
    assert [len(call.completion_ids) for call in await gateway.calls()] == [3]


async def test_agents_side_by_side_get_one_each(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["One."])
    slot = await gateway.open(budgets=FINAL)
    chat = DIALECT_CLIENTS[1]
    await chat.ask(gateway, slot, chat.body(["go"]))
    asked = [chat.ask(gateway, slot, chat.body([f"agent {number}"])) for number in range(4)]
    assert [(status, LAST in reply) for status, reply in await asyncio.gather(*asked)] == [(200, True)] * 4


@pytest.mark.parametrize(
    ("budgets", "more"),
    [
        ({"max_calls": 1}, {}),
        (FINAL, {"response_format": {"type": "json_object"}}),
    ],
    ids=["by default", "a schema to follow"],
)
async def test_otherwise_it_is_refused(
    open_gateway: OpenGateway, budgets: dict[str, Any], more: dict[str, Any]
) -> None:
    gateway = await open_gateway(["One."])
    slot = await gateway.open(budgets=budgets)
    chat = DIALECT_CLIENTS[1]
    await chat.ask(gateway, slot, chat.body(["go"]))
    status, reply = await chat.ask(gateway, slot, chat.body(["on"], **more))
    assert status == 400 and orjson.loads(reply)["error"]["code"] == "budget_exhausted"


async def test_an_overflow_is_no_budget(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([], context_tokens=8)
    chat = DIALECT_CLIENTS[1]
    status, reply = await chat.ask(gateway, await gateway.open(budgets=FINAL), chat.body(["a long way to go"]))
    assert status == 400 and orjson.loads(reply)["error"]["code"] == "context_length_exceeded"
