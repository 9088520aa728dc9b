"""Pairs of calls that a harness made by appending, read off the raw requests."""

from __future__ import annotations

import pytest
from conversation import Conversation

from polar.builders.append_only import AppendStep, appended_steps, repeats
from polar.types import Call, Message, ToolCall


def assistant(content: str = "", *tool_calls: tuple[str, str]) -> Message:
    calls = tuple(ToolCall(name, arguments, call_id=f"id-{name}") for name, arguments in tool_calls)
    return Message(role="assistant", content=content, tool_calls=calls)


def append_only_pairs(calls: list[Call]) -> list[tuple[str, str]]:
    """Steps of which each half is one call, as most are."""
    steps = appended_steps(calls)
    assert all(len(step.earlier) == len(step.later) == 1 for step in steps)
    return [(step.earlier[0], step.later[0]) for step in steps]


def user(content: str) -> Message:
    return Message(role="user", content=content)


def rendered_anew(talk: Conversation, earlier: Call, echo: Message) -> Call:
    """A call without a parent whose request is the earlier one's, a reply and something new."""
    messages = (*earlier.new_messages, echo, user("T"))
    return talk.call("SuabT", "c", new_messages=messages, new_items=(*earlier.new_items, b"reply", b"T"))


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


def test_a_reply_that_was_not_received_cannot_be_appended_to() -> None:
    talk = Conversation()
    lost = talk.call("Su", "ab", received=False)
    talk.call("T", "cd", after=lost)
    assert append_only_pairs(talk.calls) == []


def test_an_edited_echo_is_not_append_only() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, echo=assistant("something else"))
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
    rendered_anew(talk, first, assistant("ab"))
    assert append_only_pairs(talk.calls) == [("c1", "c2")]


def test_the_reply_is_looked_for_where_the_earlier_request_ends_whatever_the_forest_made_of_it() -> None:
    """The harness edited its second reply, so the forest goes back to the first call, whose request the raw items
    do not end with: they begin with the second's."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first)
    edited = (*second.new_messages, assistant("CD"), user("U"))
    items = (*second.new_items, b"edited reply", b"U")
    talk.call("SuabTCDU", "e", after=first, continues=False, new_messages=edited, new_items=items)
    assert append_only_pairs(talk.calls) == [("c1", "c2")]
    repeated = (*second.new_messages, assistant("cd"), user("V"))
    talk.call("SuabTcdV", "f", after=first, continues=False, new_messages=repeated, new_items=items)
    assert append_only_pairs(talk.calls) == [("c1", "c2"), ("c2", "c4")]


def test_a_history_spelled_anew_after_a_shorter_request_is_not_append_only() -> None:
    """It continues the second call, which no raw item shows; that it begins like the first proves nothing."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "ab", after=first)
    respelled = (*first.new_items, b"reply of c1", b"T in another shape", b"reply of c2", b"U")
    talk.call("U", "e", after=second, new_items=respelled)
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


@pytest.mark.parametrize(("reply", "pairs"), [("ab", [("c1", "c3")]), ("xy", [("c2", "c3")]), ("zz", [])])
def test_of_equal_requests_the_reply_decides_also_where_the_forest_knows_no_parent(
    reply: str, pairs: list[tuple[str, str]]
) -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("Su", "xy")
    rendered_anew(talk, first, assistant(reply))
    assert append_only_pairs(talk.calls) == pairs


def test_equal_requests_with_equal_replies_are_one_step() -> None:
    """Nothing in the request tells which of the two the harness went on from."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    assert appended_steps(talk.calls) == [AppendStep(("c1", "c2"), ("c3",))]


def test_a_step_that_was_asked_for_twice_is_one_step() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    talk.call("T", "d", after=first)
    assert appended_steps(talk.calls) == [AppendStep(("c1",), ("c2", "c3"))]


def test_a_call_without_evidence_takes_no_part() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, new_items=())
    assert append_only_pairs(talk.calls) == []


@pytest.mark.parametrize(
    ("echo", "reply"),
    [
        (assistant("ab"), assistant(" ab\n")),
        (assistant("ab"), Message(role="assistant", content="ab", reasoning="hm")),
        (assistant("", ("ls", '{"a": 1, "b": 2}')), assistant("", ("ls", '{"b":2,"a":1}'))),
        (assistant("", ("ls", '{"n": 1}')), assistant("", ("ls", '{"n": 1.0}'))),
        (assistant("", ("ls", '{"t": "\\u00e9"}')), assistant("", ("ls", '{"t": "é"}'))),
        (assistant("", ("ls", "{not json")), assistant("", ("ls", "{not json"))),
        (assistant("", ("ls", "[" * 50_000)), assistant("", ("ls", "[" * 50_000))),
    ],
    ids=["space", "reasoning", "key order", "number", "escape", "no json", "deep"],
)
def test_a_harness_may_respell_a_reply(echo: Message, reply: Message) -> None:
    assert repeats(echo, reply)


@pytest.mark.parametrize(
    ("echo", "reply"),
    [
        (Message(role="user", content="ab"), assistant("ab")),
        (assistant("ab"), assistant("a b")),
        (assistant("", ("ls", "{}")), assistant("")),
        (assistant("", ("invalid", "{}")), assistant("", ("ls", "{}"))),
        (assistant("", ("ls", '{"limit": 10}')), assistant("", ("ls", "{}"))),
        (assistant("", ("ls", '{"n": true}')), assistant("", ("ls", '{"n": 1}'))),
        (assistant("", ("ls", '{"n": 1.5}')), assistant("", ("ls", '{"n": 1}'))),
        (assistant("", ("ls", "{}")), assistant("", ("ls", "{not json"))),
    ],
    ids=["role", "text", "call added", "renamed", "default added", "boolean", "number", "repaired"],
)
def test_an_edit_is_an_edit(echo: Message, reply: Message) -> None:
    assert not repeats(echo, reply)
