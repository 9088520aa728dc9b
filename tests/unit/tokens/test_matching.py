"""When a harness's spelling of a message still is the message we sent."""

from __future__ import annotations

from polar.tokens.matching import Matcher, message_key, tools_key
from polar.types import Message, Tool, ToolCall


def assistant(content: str = "", arguments: str | None = None, **fields: str) -> Message:
    call_id = fields.pop("call_id", "call_1")
    calls = () if arguments is None else (ToolCall(name="bash", arguments=arguments, call_id=call_id),)
    return Message(role="assistant", content=content, tool_calls=calls, **fields)


tolerances = Matcher().tolerances


def same(a: Message, b: Message) -> bool:
    return message_key(a) == message_key(b)


def test_json_formatting_of_arguments_does_not_matter() -> None:
    a, b = assistant("x", '{"a": 1, "b": "é"}'), assistant("x", '{"b":"\\u00e9","a":1}')
    assert same(a, b)
    assert tolerances(a, b) == ("arguments_reformatted",)


def test_arguments_that_are_no_json_must_be_equal() -> None:
    assert same(assistant("", "{broken"), assistant("", "{broken"))
    assert not same(assistant("", "{broken"), assistant("", "{broken "))


def test_empty_arguments_are_an_empty_object() -> None:
    assert same(assistant("", ""), assistant("", "{}"))


def test_ids_white_space_and_reasoning_are_tolerated_and_named() -> None:
    a = assistant(" x", "{}", reasoning="because", call_id="call_1")
    b = assistant("x", "{}", call_id="other")
    assert same(a, b)
    assert tolerances(a, b) == ("whitespace", "reasoning_dropped", "ids_renamed")
    assert tolerances(assistant(reasoning="a"), assistant(reasoning="b")) == ("reasoning_changed",)
    assert tolerances(a, a) == ()


def test_another_value_is_another_message() -> None:
    assert not same(assistant("x", '{"a": 1}'), assistant("x", '{"a": 2}'))
    assert not same(assistant("x"), assistant("y"))
    assert not same(assistant("x"), assistant("x", "{}"))


def test_a_users_white_space_is_the_users() -> None:
    assert not same(Message(role="user", content="x"), Message(role="user", content="x "))
    assert not same(Message(role="user", content="x"), Message(role="system", content="x"))


def test_tools_are_compared_whole() -> None:
    a = Tool(name="t", parameters={"x": 1, "y": 2})
    assert tools_key((a,)) == tools_key((Tool(name="t", parameters={"y": 2, "x": 1}),))
    assert tools_key((a,)) != tools_key((Tool(name="t", description="d", parameters={"x": 1, "y": 2}),))
