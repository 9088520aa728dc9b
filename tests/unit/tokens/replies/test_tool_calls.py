"""Tool calls in text: what is read, and what stays as the model wrote it."""

from __future__ import annotations

import pytest

from polar.tokens.replies.reply_text import parse_tool_calls


def test_a_call_is_read_with_its_own_spelling() -> None:
    message = parse_tool_calls(
        '<tool_call>{"name": "bash", "arguments": {"command":"ls  -l", "n": 1.0}}</tool_call>'
    )
    assert [(c.name, c.arguments) for c in message.tool_calls] == [("bash", '{"command":"ls  -l", "n": 1.0}')]
    assert message.content == ""


def test_text_around_calls_is_content() -> None:
    message = parse_tool_calls(
        'I look.\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
        'And again.<tool_call>{"arguments": {"x": "é"}, "name": "b"}</tool_call>'
    )
    assert [c.name for c in message.tool_calls] == ["a", "b"]
    assert message.tool_calls[1].arguments == '{"x": "é"}'
    assert message.content == "I look.\n\nAnd again."


def test_text_alone_is_kept_to_the_letter() -> None:
    assert parse_tool_calls("  Done. \n").content == "  Done. \n"


def test_a_last_call_may_lack_its_closing_tag() -> None:
    message = parse_tool_calls('ok <tool_call>{"name": "bash", "arguments": {"command": "ls"}}')
    assert [c.name for c in message.tool_calls] == ["bash"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>",
    ],
)
def test_what_cannot_be_read_stays_text(text: str) -> None:
    message = parse_tool_calls(text)
    assert message.tool_calls == ()
    assert message.content == text


def test_a_broken_call_does_not_hide_a_good_one() -> None:
    message = parse_tool_calls(
        '<tool_call>nonsense</tool_call><tool_call>{"name": "ls", "arguments": {}}</tool_call>'
    )
    assert [c.name for c in message.tool_calls] == ["ls"]
    assert message.content == "<tool_call>nonsense</tool_call>"


def test_arguments_that_name_themselves_are_told_apart() -> None:
    text = '<tool_call>{"arguments": {"arguments": {"a": 1}}, "name": "x"}</tool_call>'
    assert parse_tool_calls(text).tool_calls[0].arguments == '{"arguments": {"a": 1}}'
    duplicated = '<tool_call>{"arguments": {"a": 1}, "arguments": {"b": 2}, "name": "x"}</tool_call>'
    assert parse_tool_calls(duplicated).tool_calls[0].arguments == '{"b": 2}'


def test_arguments_in_quotes_are_read_as_the_object_they_spell() -> None:
    text = '<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse_tool_calls(text).tool_calls[0].arguments == '{"a": 1}'


@pytest.mark.parametrize("arguments", ['"[1]"', '"{broken"', '""', "null", "[1]"])
def test_arguments_that_are_no_object_make_no_call(arguments: str) -> None:
    text = f'<tool_call>{{"name": "x", "arguments": {arguments}}}</tool_call>'
    assert parse_tool_calls(text).content == text
