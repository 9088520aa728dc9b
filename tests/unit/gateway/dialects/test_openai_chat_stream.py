"""The chunks of a streamed chat reply, in the order that harnesses rely on."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_chat.stream import ChatStream
from polar.gateway.dialects.problems import Overflow, Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, FinishReason, ToolCall

HEAD = Reply("s1.0.1", 1700000000, "polar", 10)
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
PATCH = {"type": "custom", "custom": {"name": "patch"}}


def request_with(**fields: Any) -> ChatRequest:
    return OpenAIChat().parse(RawRequest({"messages": HELLO, "stream": True, **fields}))


def stream(**fields: Any) -> ChatStream:
    return OpenAIChat().encoder(request_with(**fields), HEAD)


def ended(finish: FinishReason = "stop") -> Reply:
    return msgspec.structs.replace(HEAD, finish_reason=finish, completion_tokens=5, cached_tokens=4)


def events(sent: bytes) -> list[Any]:
    """The payload of each event; the frame is checked on the way."""
    *lines, rest = sent.decode().split("\n\n")
    assert rest == "" and all(line.startswith("data: ") and "\n" not in line for line in lines)
    payloads = [line.removeprefix("data: ") for line in lines]
    return [payload if payload == "[DONE]" else orjson.loads(payload) for payload in payloads]


def deltas(sent: bytes) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events(sent)]


def test_a_text_from_its_first_chunk_to_its_last() -> None:
    encoder = stream()
    sent = encoder.start() + encoder.heartbeat() + encoder.delta(Delta(content="Hi 🐈")) + encoder.end(ended())
    *chunks, done = events(sent)
    assert done == "[DONE]"
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hi 🐈"}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    ]
    for chunk in chunks:
        assert (chunk["id"], chunk["object"]) == ("chatcmpl-s1.0.1", "chat.completion.chunk")
        assert (chunk["created"], chunk["model"]) == (1700000000, "polar")
        assert chunk.keys() == {"id", "object", "created", "model", "choices"}, "no capture fields"


def test_usage_stands_alone_between_the_finish_and_the_end() -> None:
    finish, usage, done = events(stream(stream_options={"include_usage": True}).end(ended("length")))
    assert finish["choices"][0]["finish_reason"] == "length" and "usage" not in finish
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 15
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert done == "[DONE]"


def test_reasoning_has_one_name() -> None:
    assert deltas(stream().delta(Delta(reasoning="hm"))) == [{"reasoning_content": "hm"}]


def test_an_empty_delta_is_no_chunk() -> None:
    assert stream().delta(Delta()) == b""


def test_a_call_opens_with_its_name_and_goes_on_with_its_arguments() -> None:
    encoder = stream()
    first = encoder.delta(Delta(tool_call=ToolCall("bash", '{"a": "ü"}', "c1")))
    second = encoder.delta(Delta(tool_call=ToolCall("bash", "{}", "c2")))
    assert deltas(first) == [
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": "ü"}'}}]},
    ]
    assert [delta["tool_calls"][0]["index"] for delta in deltas(second)] == [1, 1]
    assert "ü".encode() in first, "not escaped"


def test_a_custom_call_is_streamed_as_text() -> None:
    encoder = stream(tools=[PATCH])
    sent = encoder.delta(Delta(tool_call=ToolCall("patch", '{"input": "*** Begin\\n"}', "c1")))
    assert deltas(sent) == [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "*** Begin\n"}}]},
    ]


def test_a_custom_call_in_another_shape_is_handed_over_as_it_stands() -> None:
    sent = stream(tools=[PATCH]).delta(Delta(tool_call=ToolCall("patch", '{"patch": 1}', "c1")))
    assert deltas(sent)[1]["tool_calls"][0]["custom"] == {"input": '{"patch": 1}'}


def test_a_text_after_a_call() -> None:
    encoder = stream()
    sent = encoder.delta(Delta(tool_call=ToolCall("bash", "{}", "c1"))) + encoder.delta(Delta(content="Now wait."))
    assert deltas(sent)[-1] == {"content": "Now wait."}


def test_two_streams_count_their_calls_apart() -> None:
    one, two = stream(), stream()
    one.delta(Delta(tool_call=ToolCall("bash", "{}", "c1")))
    sent = two.delta(Delta(tool_call=ToolCall("bash", "{}", "c2")))
    assert deltas(sent)[0]["tool_calls"][0]["index"] == 0


def test_a_problem_that_may_pass_cuts_the_stream_without_a_word() -> None:
    broken = stream().broken(Problem(502, "engine_error", "the engine failed", retry=True))
    assert (broken.last, broken.clean) == (b"", False)


@pytest.mark.parametrize(
    "problem",
    [Problem(400, "session_sealed", "the session has ended"), Overflow(9000, 8192)],
    ids=lambda p: p.code,
)
def test_a_final_problem_is_sent_before_the_cut(problem: Problem) -> None:
    broken = stream().broken(problem)
    (event,) = events(broken.last)
    assert event["error"]["code"] == problem.code and event == orjson.loads(OpenAIChat().error(problem).body)
    assert not broken.clean
