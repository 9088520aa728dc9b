"""Half an emoji, as a harness sends that cut a tool's output between two UTF-16 units."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialect_clients import DIALECT_CLIENTS, DialectClient
from playbook import BASH_TOOL, OpenGateway, assert_tokens_hold_together

HALF = "\ud83d"


def as_sent(body: dict[str, Any]) -> bytes:
    """As JavaScript writes it: half a pair stays an escape."""
    return json.dumps(body).encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_half_an_emoji_is_laid_out_as_a_replacement(
    open_gateway: OpenGateway, dialect: DialectClient, stream: bool
) -> None:
    gateway = await open_gateway(["One.", "Two."])
    slot = await gateway.open()
    turns = [f"cut {HALF}", "One.", "more \ude00 and a whole \U0001f600"]
    for count in (1, 3):
        body = as_sent(dialect.body(turns[:count], stream=stream))
        status, reply = await dialect.ask(gateway, slot, body, stream=stream)
        assert status == 200, reply
    first, second = await gateway.calls()
    assert (first.lone_surrogates, second.lone_surrogates) == (1, 2)
    assert first.new_messages[-1].content == "cut \ufffd"
    assert second.new_messages[-1].content == "more \ufffd and a whole \U0001f600"
    assert second.parent_id == first.call_id and second.continues, "the echo is known again"
    assert_tokens_hold_together([first, second], gateway.engine)
    assert "cut \ufffd" in gateway.renderer.decode(gateway.engine.requests[0].request.prompt_ids)


async def test_half_an_emoji_inside_the_arguments_of_a_call(open_gateway: OpenGateway) -> None:
    """They are JSON inside JSON: the outer text is sound, the inner one is not."""
    gateway = await open_gateway(["Fine."])
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"command": HALF})},
    }
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": r"a file that spells \ud83d"},
    ]
    body = {"messages": messages, "tools": [BASH_TOOL]}
    status, reply, _ = await gateway.post(await gateway.open(), as_sent(body))
    assert status == 200, reply
    (recorded,) = await gateway.calls()
    assert recorded.lone_surrogates == 1
    assert json.loads(recorded.new_messages[1].tool_calls[0].arguments) == {"command": "\ufffd"}
    assert recorded.new_messages[2].content == r"a file that spells \ud83d", "text that spells an escape is text"


@pytest.mark.parametrize("body", [b'{"messages": "\\ud83d"', b'{"a": "\\ud83', b'["\\udc00"]'])
async def test_a_body_that_is_broken_beside_it_is_refused(open_gateway: OpenGateway, body: bytes) -> None:
    gateway = await open_gateway([])
    assert (await gateway.post(await gateway.open(), body))[0] == 400


async def test_names_of_fields_may_hold_one(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Fine."])
    body = as_sent({"messages": [{"role": "user", "content": "go"}], "metadata": {HALF: HALF}})
    assert (await gateway.post(await gateway.open(), body))[0] == 200
    assert [call.lone_surrogates for call in await gateway.calls()] == [2]
