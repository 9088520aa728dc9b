"""Pairs of calls that a harness made by appending, read off the raw requests."""

from __future__ import annotations

import pytest
from conversation import Conversation

from polar.builders.append_only import append_only_pairs, repeats
from polar.types import Message, ToolCall


def said(content: str = "", *tool_calls: tuple[str, str]) -> Message:
    calls = tuple(ToolCall(name, arguments, call_id=f"id-{name}") for name, arguments in tool_calls)
    return Message(role="assistant", content=content, tool_calls=calls)


def test_each_call_of_a_conversation_is_paired_with_the_one_before() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first)
    talk.call("U", "e", after=second)
    assert append_only_pairs(talk.calls) == [("c1", "c2"), ("c2", "c3")]


def test_a_first_call_and_an_unrelated_one_have_no_pair() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    talk.call("other", "cd")
    assert append_only_pairs(talk.calls) == []


def test_a_repeated_request_appends_nothing() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    talk.call("Su", "cd")
    assert append_only_pairs(talk.calls) == []


def test_a_reply_that_nobody_received_cannot_be_appended_to() -> None:
    talk = Conversation()
    lost = talk.call("Su", "ab", received=False)
    talk.call("T", "cd", after=lost)
    assert append_only_pairs(talk.calls) == []


def test_an_edited_echo_is_not_append_only() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, echo=said("something else"))
    assert append_only_pairs(talk.calls) == []


def test_a_request_that_does_not_send_the_reply_back_is_not_append_only() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, new_messages=(Message(role="user", content="T"),))
    talk.call("U", "ef", after=first, new_messages=())
    assert append_only_pairs(talk.calls) == []


def test_the_forest_has_no_say_where_it_put_the_call_elsewhere() -> None:
    """The tokens were rendered anew, without a parent, but the harness only appended."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("SuabT", "cd", new_items=(*first.new_items, b"reply", b"T"))
    assert append_only_pairs(talk.calls) == [("c1", "c2")]


def test_the_longest_request_wins_however_late_the_shorter_one() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first)
    talk.call("V", "x", after=first)
    talk.call("U", "e", after=second)
    assert append_only_pairs(talk.calls)[-1] == ("c2", "c4")


def test_of_equal_requests_the_one_whose_reply_is_sent_back_wins() -> None:
    talk = Conversation()
    kept = talk.call("Su", "ab")
    talk.call("Su", "xy")
    talk.call("T", "c", after=kept)
    assert append_only_pairs(talk.calls) == [("c1", "c3")]


def test_of_equal_requests_the_latest_wins_where_the_echo_is_not_known() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("Su", "xy")
    talk.call("SuxyT", "c", new_items=(*first.new_items, b"reply", b"T"))
    assert append_only_pairs(talk.calls) == [("c2", "c3")]


def test_a_call_without_evidence_takes_no_part() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, new_items=())
    assert append_only_pairs(talk.calls) == []


@pytest.mark.parametrize(
    ("echo", "reply"),
    [
        (said("ab"), said(" ab\n")),
        (said("ab"), Message(role="assistant", content="ab", reasoning="hm")),
        (said("", ("ls", '{"a": 1, "b": 2}')), said("", ("ls", '{"b":2,"a":1}'))),
        (said("", ("ls", '{"n": 1}')), said("", ("ls", '{"n": 1.0}'))),
        (said("", ("ls", '{"t": "\\u00e9"}')), said("", ("ls", '{"t": "é"}'))),
        (said("", ("ls", "{not json")), said("", ("ls", "{not json"))),
        (said("", ("ls", "[" * 50_000)), said("", ("ls", "[" * 50_000))),
    ],
    ids=["space", "reasoning", "key order", "number", "escape", "no json", "deep"],
)
def test_a_harness_may_respell_a_reply(echo: Message, reply: Message) -> None:
    assert repeats(echo, reply)


@pytest.mark.parametrize(
    ("echo", "reply"),
    [
        (Message(role="user", content="ab"), said("ab")),
        (said("ab"), said("a b")),
        (said("", ("ls", "{}")), said("")),
        (said("", ("invalid", "{}")), said("", ("ls", "{}"))),
        (said("", ("ls", '{"limit": 10}')), said("", ("ls", "{}"))),
        (said("", ("ls", '{"n": true}')), said("", ("ls", '{"n": 1}'))),
        (said("", ("ls", '{"n": 1.5}')), said("", ("ls", '{"n": 1}'))),
        (said("", ("ls", "{}")), said("", ("ls", "{not json"))),
    ],
    ids=["role", "text", "call added", "renamed", "default added", "boolean", "number", "repaired"],
)
def test_an_edit_is_an_edit(echo: Message, reply: Message) -> None:
    assert not repeats(echo, reply)
