"""Anthropic for any conversation and any reply: writing and reading it gives the same values."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_anthropic_reply import HEAD, REQUEST, assemble, events, stream_bytes, whole

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import Reply
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, Image, Message, Tool, ToolCall

DIALECT = Anthropic()
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
TEXTS = st.text(min_size=1, max_size=20)
NAMES = st.sampled_from(["bash", "edit", "mcp__files__read"])
IDS = st.text("abc_0", min_size=1, max_size=6)


def through_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


class TestConversations:
    """Canonical messages, a harness that writes them as it likes, and the same messages again."""

    @st.composite
    @staticmethod
    def images(draw: st.DrawFn, content: str) -> tuple[Image, ...]:
        places = draw(st.lists(st.integers(0, len(content)), max_size=2).map(sorted))
        urls = st.sampled_from(["data:image/png;base64,aGk=", "http://example.test/a.png"])
        return tuple(Image(draw(urls), at) for at in places)

    @st.composite
    @staticmethod
    def history_messages(draw: st.DrawFn) -> Message:
        role: Any = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
        content = draw(TEXTS)
        images = draw(TestConversations.images(content)) if role in ("user", "tool") else ()
        if role == "tool":
            return Message("tool", content, tool_call_id=draw(IDS), images=images, is_error=draw(st.booleans()))
        if role != "assistant":
            return Message(role, content, images=images)
        arguments = OBJECTS.map(lambda value: orjson.dumps(value).decode())
        calls = draw(st.lists(st.builds(ToolCall, NAMES, arguments, IDS), max_size=2))
        return Message("assistant", draw(st.just(content) | st.just("")), draw(st.text(max_size=9)), tuple(calls))

    @given(
        st.data(),
        TEXTS | st.just(""),
        st.lists(history_messages(), max_size=6),
        st.lists(
            st.builds(Tool, name=NAMES, description=st.text(max_size=9), parameters=OBJECTS),
            unique_by=lambda tool: tool.name,
        ),
    )
    def test_they_are_read_as_they_were_meant(
        self, data: st.DataObject, system: str, history: list[Message], tools: list[Tool]
    ) -> None:
        history = [*history, Message("user", "go on")]
        body: dict[str, Any] = {"max_tokens": 5, "messages": write(data.draw, history), "tools": []}
        if system:
            body["system"] = text_shape(data.draw, system)
        for tool in tools:
            entry = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            body["tools"].append(entry)
        request = DIALECT.parse(RawRequest(through_json(body)))
        first = [Message("system", system)] if system else []
        assert list(request.messages) == [*first, *history]
        assert list(request.tools) == tools
        assert len(request.items) == 1 + len(body["messages"])


def write(draw: Any, messages: list[Message]) -> list[dict[str, Any]]:
    """As a harness writes them: results and the content around them may share a message."""
    written: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        content = written_content(draw, message)
        last = written[-1]["content"] if written and written[-1]["role"] == role == "user" else None
        if (
            isinstance(last, list)
            and isinstance(content, list)
            and may_share(last, content)
            and draw(st.booleans())
        ):
            last += content
        else:
            written.append({"role": role, "content": content})
    return written


def may_share(last: list[Any], content: list[Any]) -> bool:
    """Two texts in one message would be one text."""
    return "tool_result" in (last[-1]["type"], content[0]["type"])


def written_content(draw: Any, message: Message) -> Any:
    if message.role == "assistant":
        return assistant_blocks(draw, message)
    if message.role == "system":
        return text_shape(draw, message.content)
    content = parts(draw, message)
    if message.role == "user":
        return content
    block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return [{**block, "is_error": True} if message.is_error else block]


def text_shape(draw: Any, value: str) -> Any:
    block = {"type": "text", "text": value}
    return draw(st.sampled_from([value, [block], [{**block, "cache_control": {"type": "ephemeral"}}]]))


def parts(draw: Any, message: Message) -> Any:
    """Text cut where its images stand, and at random places."""
    if not message.images and draw(st.booleans()):
        return message.content
    cuts = draw(st.lists(st.integers(0, len(message.content)), max_size=2))
    blocks: list[dict[str, Any]] = []
    done = 0
    marks = [*((cut, "") for cut in cuts), *((image.at, image.url) for image in message.images)]
    for at, url in sorted(marks, key=lambda mark: mark[0]):
        blocks.append({"type": "text", "text": message.content[done:at]})
        done = at
        if url.startswith("data:"):
            source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
            blocks.append({"type": "image", "source": source})
        elif url:
            blocks.append({"type": "image", "source": {"type": "url", "url": url}})
    return [*blocks, {"type": "text", "text": message.content[done:]}]


def assistant_blocks(draw: Any, message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": draw(TEXTS)})
    if draw(st.booleans()):
        blocks.append({"type": "redacted_thinking", "data": "x"})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        arguments = orjson.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments})
    return blocks


class TestReplies:
    spelled = st.one_of(
        OBJECTS.map(lambda value: json.dumps(value)),
        OBJECTS.map(lambda value: json.dumps(value, indent=2, ensure_ascii=False)),
        OBJECTS.map(lambda value: orjson.dumps(value).decode()),
        st.just(""),
    )
    deltas = st.lists(
        st.one_of(
            st.builds(Delta, reasoning=TEXTS),
            st.builds(Delta, content=TEXTS),
            st.builds(Delta, tool_call=st.builds(ToolCall, NAMES, spelled, IDS)),
            st.just(Delta()),
        ),
        max_size=8,
    )
    replies = st.builds(
        partial(msgspec.structs.replace, HEAD),
        deltas=deltas.map(tuple),
        finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
        completion_tokens=st.integers(0, 99),
        cached_tokens=st.integers(0, HEAD.prompt_tokens),
        reasoning_tokens=st.integers(0, 9),
        stop_sequence=st.sampled_from(["", "END"]),
    )

    @given(replies)
    def test_a_stream_makes_up_the_whole_reply(self, reply: Reply) -> None:
        assert assemble(events(stream_bytes(reply))) == whole(reply)

    @given(replies)
    def test_a_reply_that_comes_back_is_the_turn_that_was_sent(self, reply: Reply) -> None:
        echo = {"role": "assistant", "content": whole(reply)["content"]}
        body = {"max_tokens": 5, "messages": [echo, {"role": "user", "content": "go on"}]}
        turn = DIALECT.parse(RawRequest(through_json(body))).messages[0]
        sent = [delta.tool_call for delta in reply.deltas if delta.tool_call]
        assert turn.content == "".join(delta.content for delta in reply.deltas)
        assert turn.reasoning == "".join(delta.reasoning for delta in reply.deltas)
        assert [(call.name, call.call_id) for call in turn.tool_calls] == [(c.name, c.call_id) for c in sent]
        for call, original in zip(turn.tool_calls, sent, strict=True):
            assert orjson.loads(call.arguments) == orjson.loads(original.arguments or "{}")

    @given(replies)
    def test_the_reply_is_json_that_says_nothing_of_tokens(self, reply: Reply) -> None:
        assert orjson.loads(DIALECT.reply(REQUEST, reply)).keys() == {
            *("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
        }


RICH: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "stop_sequences": ["END"],
    "temperature": 1,
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {}}},
    "tool_choice": {"type": "auto"},
    "tools": [
        {"name": "bash", "description": "d", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]},
        {
            "role": "system",
            "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "a"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "x"}, {"type": "tool_reference", "tool_name": "bash"}],
                }
            ],
        },
    ],
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container of a value with each of its keys."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [pair for key in keys for pair in [(value, key), *places(value[key])]]


class TestAnything:
    def attempt(self, data: Any, action: str = "") -> None:
        try:
            DIALECT.parse(RawRequest(through_json(data), action))
        except Problem as problem:
            assert problem.status == 400 and problem.message
            assert not any(char.isdigit() for char in problem.message), "harnesses read digits as a status"

    @given(OBJECTS, st.sampled_from(["", "countTokens"]))
    @example({"messages": [[]]}, "")
    def test_no_json_is_a_crash(self, data: dict[str, Any], action: str) -> None:
        self.attempt(data, action)

    @given(st.sampled_from(range(len(places(RICH)))), JSON)
    def test_no_wrong_value_in_a_good_request_is_a_crash(self, index: int, value: Any) -> None:
        data = through_json(RICH)
        container, key = places(data)[index]
        container[key] = value
        self.attempt(data)

    @given(st.sampled_from(range(len(places(RICH)))))
    def test_nothing_that_is_missing_is_a_crash(self, index: int) -> None:
        data = through_json(RICH)
        container, key = places(data)[index]
        del container[key]
        self.attempt(data)

    def test_the_good_request_is_one(self) -> None:
        request = DIALECT.parse(RawRequest(RICH))
        assert [tool.name for tool in request.tools] == ["bash"]
        assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool"]

    @pytest.mark.parametrize("kind", ["text_editor_20250429", "document_503", "429"])
    def test_a_type_with_a_status_in_it_is_spelled_without(self, kind: str) -> None:
        self.attempt({**RICH, "tools": [{"type": kind, "name": "x"}]})
        self.attempt({**RICH, "messages": [{"role": "user", "content": [{"type": kind}]}]})
