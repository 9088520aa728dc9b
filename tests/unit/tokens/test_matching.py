"""When a harness's spelling of a message still is the message we sent."""

from __future__ import annotations

from polar.tokens.matching import Matcher, message_key, tools_key
from polar.types import Message, Tool, ToolCall


def said(content: str = "", arguments: str | None = None, **fields: str) -> Message:
    call_id = fields.pop("call_id", "call_1")
    calls = () if arguments is None else (ToolCall(name="bash", arguments=arguments, call_id=call_id),)
    return Message(role="assistant", content=content, tool_calls=calls, **fields)


tolerances = Matcher().tolerances


def same(a: Message, b: Message) -> bool:
    return message_key(a) == message_key(b)


def test_json_formatting_of_arguments_does_not_matter() -> None:
    a, b = said("x", '{"a": 1, "b": "é"}'), said("x", '{"b":"\\u00e9","a":1}')
    assert same(a, b)
    assert tolerances(a, b) == ("arguments_reformatted",)


def test_arguments_that_are_no_json_must_be_equal() -> None:
    assert same(said("", "{broken"), said("", "{broken"))
    assert not same(said("", "{broken"), said("", "{broken "))


def test_empty_arguments_are_an_empty_object() -> None:
    assert same(said("", ""), said("", "{}"))


def test_ids_white_space_and_reasoning_are_tolerated_and_named() -> None:
    a = said(" x", "{}", reasoning="because", call_id="call_1")
    b = said("x", "{}", call_id="other")
    assert same(a, b)
    assert tolerances(a, b) == ("whitespace", "reasoning_dropped", "ids_renamed")
    assert tolerances(said(reasoning="a"), said(reasoning="b")) == ("reasoning_changed",)
    assert tolerances(a, a) == ()


def test_another_value_is_another_message() -> None:
    assert not same(said("x", '{"a": 1}'), said("x", '{"a": 2}'))
    assert not same(said("x"), said("y"))
    assert not same(said("x"), said("x", "{}"))


def test_a_users_white_space_is_the_users() -> None:
    assert not same(Message(role="user", content="x"), Message(role="user", content="x "))
    assert not same(Message(role="user", content="x"), Message(role="system", content="x"))


def test_tools_are_compared_whole() -> None:
    a = Tool(name="t", parameters={"x": 1, "y": 2})
    assert tools_key((a,)) == tools_key((Tool(name="t", parameters={"y": 2, "x": 1}),))
    assert tools_key((a,)) != tools_key((Tool(name="t", description="d", parameters={"x": 1, "y": 2}),))
