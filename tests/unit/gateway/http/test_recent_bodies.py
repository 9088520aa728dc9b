"""What a session's earlier bodies spare changes nothing: every request is read as if it were the first."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import Dialect
from polar.gateway.dialects.google import Google
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.gateway.http import bodies
from polar.gateway.http.bodies import MOST_BODIES, MOST_BYTES, MOST_VALUES, RecentBodies, read_values

TEXTS = st.text(st.sampled_from([*'a",[]{}:\\ \n', "é", "😀"]), max_size=8)
STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"ensure_ascii": False},
    {"indent": 2},
    {"sort_keys": True, "separators": (" , ", "\t:\n")},
]


def spelled(value: Any, style: int = 0) -> bytes:
    return json.dumps(value, **STYLES[style]).encode()


def outcome(read: Any) -> Any:
    """What a reading gives, or how it is refused."""
    try:
        return read()
    except Problem as problem:
        return problem.status, problem.code, problem.message, problem.param


def read(recent: RecentBodies, body: bytes, most_values: int = MOST_VALUES) -> dict[str, Any]:
    found = recent.read(body, most_values, recent.shared(body))
    if found.values is not None:
        assert [item.value for item in found.items] == found.values
    return found.data


# Any JSON at all, cut and put together at will.

ITEMS = st.sampled_from(
    [
        b"1",
        b"12",
        b"-0.5",
        b"1e5",
        b"true",
        b"null",
        b'"a"',
        b'"],["',
        b'"\\"',
        b"[]",
        b"[[1,2],{}]",
        b'{"b": [3]}',
        b"{",
    ]
)
GAPS = st.sampled_from([b",", b" , ", b"\n,\t", b",,", b""])
HEADS = st.sampled_from(
    [b'{"h":[', b'{"x":1, "h" : [ ', b'{"h":[2],"h":[', b'{"g":["h"],"h":[', b'{"x":{"h":[1]},"h":[']
)
TAILS = st.sampled_from(
    [b"]}", b'],"x":{"h":[1]}}', b'],"h":[1]}', b'],"h":1}', b" ] }", b"]} ", b"]", b'],"x":"h":[1]}']
)
PIECES = st.tuples(HEADS, st.lists(st.tuples(ITEMS, GAPS), max_size=6), TAILS)


def put_together(pieces: tuple[bytes, list[tuple[bytes, bytes]], bytes]) -> bytes:
    head, items, tail = pieces
    middle = b"".join(item + gap for item, gap in items)
    return head + middle.removesuffix(items[-1][1] if items else b"") + tail


@given(st.lists(PIECES, max_size=12))
def test_any_json_is_read_as_if_it_were_the_first(sent: list[Any]) -> None:
    recent = RecentBodies("h")
    for body in map(put_together, sent):
        expected = outcome(lambda body=body: read_values(body, MOST_VALUES))
        assert outcome(lambda body=body: read(recent, body)) == expected


# Conversations, as harnesses send them and as they should not.


def chat_items(said: str, number: int) -> list[Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": said})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": said},
        {"role": "user", "content": [{"type": "text", "text": said}, {"type": "text", "text": "more"}]},
        {"role": "assistant", "content": said, "reasoning_content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": said},
        {"role": "nobody", "content": said},
        {"role": "assistant", "content": said},
        {"role": "system", "content": said},
    ]


def anthropic_items(said: str, number: int) -> list[Any]:
    block = {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}
    return [
        {"role": "user", "content": said},
        {"role": "user", "content": [block]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"c{number}", "name": "a", "input": {"b": said}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": said}, block],
        },
        {"role": "user", "content": [{"type": "tool_reference", "tool_name": "a"}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "a"}]}],
        },
        {"role": "system", "content": said},
    ]


def responses_items(said: str, number: int) -> list[Any]:
    return [
        {"role": "user", "content": said},
        {"type": "reasoning", "id": f"rs_r{number}_0", "summary": [], "content": [{"type": "t", "text": said}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]},
        {"type": "function_call", "call_id": f"c{number}", "name": "a", "arguments": json.dumps({"b": said})},
        {"type": "function_call_output", "call_id": f"c{number}", "output": said},
        {"type": "additional_tools", "tools": [{"type": "function", "name": f"late{number % 3}"}]},
        {"type": "custom_tool_call", "call_id": f"c{number}", "name": "a", "input": said},
    ]


def google_items(said: str, number: int) -> list[Any]:
    return [
        {"role": "user", "parts": [{"text": said}]},
        {"role": "model", "parts": [{"text": said, "thought": True}, {"text": said}]},
        {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {"b": said}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {"output": said}}}]},
        {"role": "someone", "parts": [{"text": said}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "a", "response": {"error": said}}}, {"text": said}],
        },
        {"role": "model", "parts": [{"functionCall": {"id": f"c{number}", "name": "b", "args": {}}}]},
    ]


DIALECTS: list[tuple[Dialect, str, Any, dict[str, Any]]] = [
    (OpenAIChat(), "", chat_items, {"tools": [{"type": "function", "function": {"name": "bash"}}]}),
    (
        Anthropic(),
        "",
        anthropic_items,
        {"max_tokens": 9, "system": "s", "tools": [{"name": "a", "input_schema": {}}]},
    ),
    (OpenAIResponses(), "", responses_items, {"instructions": "s", "tools": [{"type": "function", "name": "a"}]}),
    (Google(), "generateContent", google_items, {"systemInstruction": "s"}),
]
STEP = st.tuples(
    st.integers(0, 2),  # which conversation goes on
    st.sampled_from(["append", "append", "append", "edit", "cut", "respell", "fork", "twice"]),
    st.integers(0, 30),
    st.lists(st.tuples(TEXTS, st.sampled_from([0, 1, 2, 3, 5, 6]) | st.integers(0, 6)), min_size=1, max_size=3),
    st.integers(0, len(STYLES) - 1),
)


class Harness:
    """Keeps histories as lists of spelled items, and does to them what harnesses do."""

    def __init__(self, make_items: Any) -> None:
        self._items = make_items
        self._talks: list[list[bytes]] = [[], [], []]
        self._number = 0

    def step(self, which: int, what: str, place: int, said: list[tuple[str, int]], style: int) -> list[bytes]:
        talk = self._talks[which]
        self._number += 1
        new = [spelled(self._items(text, self._number)[kind], style) for text, kind in said]
        at = place % (len(talk) + 1)
        if what == "edit" and talk:
            talk[at - 1] = new[0]
        elif what == "cut":
            del talk[at:]
        elif what == "respell":
            talk[:at] = [spelled(json.loads(item), style) for item in talk[:at]]
        elif what == "fork":
            self._talks[(which + 1) % 3] = talk[:at]
        elif what == "twice":
            return talk or new
        talk += new
        return talk


@pytest.mark.parametrize(
    "dialect, action, make_items, others", DIALECTS, ids=lambda value: getattr(value, "name", "")
)
@given(steps=st.lists(STEP, max_size=14), history_first=st.booleans())
def test_a_conversation_is_read_as_if_each_request_were_the_first(
    dialect: Dialect, action: str, make_items: Any, others: Any, steps: list[Any], history_first: bool
) -> None:
    recent, harness = RecentBodies(dialect.history_field), Harness(make_items)
    for step in steps:
        items = b",".join(harness.step(*step))
        history, rest = b'"%s":[%s]' % (dialect.history_field.encode(), items), spelled(others)[1:-1]
        body = b"{%s,%s}" % ((history, rest) if history_first else (rest, history))

        def as_first(body: bytes = body) -> Any:
            return dialect.parse(RawRequest(read_values(body, MOST_VALUES), action))

        def after_others(body: bytes = body) -> Any:
            found = recent.read(body, MOST_VALUES, recent.shared(body))
            return dialect.parse(msgspec.structs.replace(found, action=action))

        assert outcome(after_others) == outcome(as_first)


# What it spares, and what it may not cost.


def chat_body(*said: str, first: str = "", **others: Any) -> bytes:
    items = [{"role": "user", "content": text} for text in said]
    return spelled({"first": first, "messages": items, "stream": True, **others})


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of everything that is decoded."""
    sizes, real = list[int](), bodies.read_object

    def counting(text: bytes) -> dict[str, Any]:
        sizes.append(len(text))
        return real(text)

    monkeypatch.setattr(bodies, "read_object", counting)
    return sizes


def test_only_what_is_new_is_decoded_while_conversations_take_turns(decoded: list[int]) -> None:
    recent = RecentBodies("messages")
    talks = {name: [name * 5000] for name in "abc"}
    for _ in range(4):
        for talk in talks.values():
            talk.append("and then?")
            read(recent, chat_body(*talk))
    assert min(decoded[:3]) > 5000 and max(decoded[3:]) < 300


def test_items_of_two_requests_are_the_same_objects() -> None:
    recent = RecentBodies("messages")
    before = recent.read(chat_body("a", "b"), MOST_VALUES, None).items
    body = chat_body("a", "b", "c")
    after = recent.read(body, MOST_VALUES, recent.shared(body)).items
    assert after[:2] == before and len(after) == 3


def test_what_stands_before_the_history_must_be_the_same(decoded: list[int]) -> None:
    recent = RecentBodies("messages")
    for first in ("x", "y"):
        assert read(recent, chat_body("a" * 5000, first=first))["first"] == first
    assert min(decoded) > 5000


def test_a_second_list_of_the_same_name_is_the_one_that_counts() -> None:
    recent = RecentBodies("messages")
    read(recent, b'{"messages":[1,2]}')
    assert read(recent, b'{"messages":[1,2,3],"messages":[4]}')["messages"] == [4]


def test_a_number_that_goes_on_is_another_number() -> None:
    recent = RecentBodies("messages")
    read(recent, b'{"messages":[1,2]}')
    assert read(recent, b'{"messages":[1,23]}')["messages"] == [1, 23]


def test_few_bodies_are_kept_and_only_so_many_bytes() -> None:
    recent = RecentBodies("messages")
    for number in range(3 * MOST_BODIES):
        read(recent, chat_body(str(number) * 100))
    assert 0 < recent.size_bytes <= MOST_BODIES * 400
    for number in range(3):
        read(recent, chat_body(str(number) * (MOST_BYTES // 2 - 1000)))
        assert recent.size_bytes <= MOST_BYTES
    kept = recent.size_bytes
    read(recent, chat_body("x" * MOST_BYTES))
    assert recent.size_bytes == kept


def test_a_conversation_is_kept_once_however_long_it_goes_on() -> None:
    recent, said = RecentBodies("messages"), list[str]()
    for number in range(20):
        said.append(str(number))
        read(recent, chat_body(*said))
    assert recent.size_bytes == len(chat_body(*said))


def test_a_history_of_very_many_items_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_ITEMS", 3)
    recent = RecentBodies("messages")
    read(recent, chat_body("a", "b", "c", "d"))
    assert recent.size_bytes == 0
    read(recent, chat_body("a", "b", "c"))
    before = recent.size_bytes
    assert len(read(recent, chat_body("a", "b", "c", "d"))["messages"]) == 4
    assert recent.size_bytes == before


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6) | TEXTS, max_size=12), st.integers(0, 20), st.integers(0, 40)
)
def test_values_are_counted_as_in_a_first_request(added: list[Any], containers: int, most_values: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "MOST_CONTAINERS", containers)
        recent, history = RecentBodies("messages"), list[Any]()
        for value in added:
            history.append(value)
            body = spelled({"messages": history})
            expected = outcome(lambda body=body: read_values(body, most_values))
            assert outcome(lambda body=body: read(recent, body, most_values)) == expected
