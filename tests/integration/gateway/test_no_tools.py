"""A model that writes a call although no tool is offered: the harness gets the text, the tokens are as sampled."""

from __future__ import annotations

from typing import Any

import pytest
from dialect_clients import DIALECT_CLIENTS, DialectClient
from playbook import BASH_TOOL, OpenGateway, assert_tokens_hold_together

from polar.testing import ScriptedReply

CALL = '<tool_call>{"name": "bash", "arguments": {"command":"ls"}}</tool_call>'
TOOL = BASH_TOOL["function"]
NONE: dict[str, dict[str, Any]] = {
    "anthropic": {
        "tools": [{"name": "bash", "input_schema": TOOL["parameters"]}],
        "tool_choice": {"type": "none"},
    },
    "openai_chat": {"tools": [BASH_TOOL], "tool_choice": "none"},
    "openai_responses": {"tools": [{"type": "function", **TOOL}], "tool_choice": "none"},
    "google": {
        "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": TOOL["parameters"]}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "NONE"}},
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["none", "no tools"])
@pytest.mark.parametrize("dialect", DIALECT_CLIENTS, ids=str)
async def test_a_call_without_tools_is_text(
    open_gateway: OpenGateway, dialect: DialectClient, choice: str, stream: bool
) -> None:
    gateway = await open_gateway([ScriptedReply(text=f"See: {CALL}"), "Fine."])
    slot = await gateway.open()
    more = NONE[dialect.name] if choice == "none" else {}
    for turns in (["go"], ["go", f"See: {CALL}", "on"]):
        status, reply = await dialect.ask(gateway, slot, dialect.body(turns, stream=stream, **more), stream=stream)
        assert status == 200, reply
    first, second = await gateway.calls()
    assert (first.response.content, first.response.tool_calls) == (f"See: {CALL}", ())
    assert first.finish_reason == "stop"
    assert second.parent_id == first.call_id and second.continues, "the echo is known again"
    assert_tokens_hold_together([first, second], gateway.engine)
