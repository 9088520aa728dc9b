"""The events of a streamed Responses reply: which, in what order, and how an incomplete one ends."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from responses_api import (
    AGENTS,
    APPLY_PATCH,
    BASH,
    TOOL_SEARCH,
    encoder,
    events,
    parse,
    reply_of,
    streamed,
    written,
)

from polar.gateway.dialects.problems import Overflow, Problem
from polar.types import Delta, ToolCall

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LS = Delta(tool_call=ToolCall("bash", '{"command": "ls"}', "call_1"))


def types(found: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def test_a_text() -> None:
    found = streamed(parse(), Delta(content="Hel"), Delta(content="lo"))
    assert types(found) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    place = {"item_id": "msg_s1.0.7_0", "output_index": 0, "content_index": 0}
    for event in found[3:8]:
        assert place.items() <= event.items()
    assert [event["delta"] for event in found[4:6]] == ["Hel", "lo"]
    assert found[6]["text"] == found[7]["part"]["text"] == found[8]["item"]["content"][0]["text"] == "Hello"


def test_it_begins_with_a_response_in_progress() -> None:
    created, in_progress = events(encoder(parse()).start())
    assert created["response"] == in_progress["response"]
    response = created["response"]
    assert (response["id"], response["status"], response["output"]) == ("resp_s1.0.7", "in_progress", [])
    assert (response["model"], response["created_at"]) == ("polar", 1_760_000_000)


def test_events_are_numbered_without_a_gap_heartbeats_too() -> None:
    stream = encoder(parse())
    data = stream.start() + stream.heartbeat() + stream.delta(Delta(content="a")) + stream.heartbeat()
    data += stream.delta(LS) + stream.end(reply_of([Delta(content="a"), LS]))
    found = events(data)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[2]["type"] == "response.in_progress" and found[2]["response"] == found[0]["response"]


def test_reasoning() -> None:
    found = streamed(parse(), Delta(reasoning="Think "), Delta(reasoning="twice."), Delta(content="Yes."))
    assert types(found)[2:9] == [
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done"),
        "output_item.done",
    ]
    added, done = found[2]["item"], found[8]["item"]
    assert added["summary"] == [] and added["encrypted_content"] is None
    assert done["summary"][0]["text"] == found[6]["text"] == "Think twice." and done["encrypted_content"]
    assert all(event["summary_index"] == 0 and event["output_index"] == 0 for event in found[3:8])


def test_a_call() -> None:
    found = streamed(parse(tools=[BASH]), LS)
    assert types(found)[2:6] == [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done")
    ]
    assert found[2]["item"]["arguments"] == "" and found[2]["item"]["status"] == "in_progress"
    assert found[4]["name"] == "bash" and found[4]["arguments"] == found[3]["delta"] == '{"command": "ls"}'
    assert found[5]["item"] == written(parse(tools=[BASH]), LS)["output"][0]


def test_a_custom_call() -> None:
    patch = Delta(tool_call=ToolCall("apply_patch", '{"input":"*** Begin\\n"}', "call_1"))
    found = streamed(parse(tools=[APPLY_PATCH]), patch)
    assert types(found)[2:6] == [
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done")
    ]
    assert found[2]["item"]["input"] == ""
    assert found[3]["delta"] == found[4]["input"] == found[5]["item"]["input"] == "*** Begin\n"
    assert len({event.get("item_id", event.get("item", {}).get("id")) for event in found[2:6]}) == 1


def test_a_search_for_tools_and_a_namespaced_call() -> None:
    found = streamed(
        parse(tools=[TOOL_SEARCH, AGENTS]),
        Delta(tool_call=ToolCall("tool_search", '{"query":"x"}', "call_1")),
        Delta(tool_call=ToolCall("multi_agent_v1__wait", "", "call_2")),
    )
    assert types(found)[2:-1] == [
        *("output_item.added", "output_item.done"),
        *("output_item.added", "function_call_arguments.done", "output_item.done"),
    ]
    assert found[3]["item"]["arguments"] == {"query": "x"}
    assert all(event["item"]["namespace"] == "multi_agent_v1" for event in (found[4], found[6]))


def test_several_calls_and_text_after_them() -> None:
    second = Delta(tool_call=ToolCall("bash", "{}", "call_2"))
    deltas = (Delta(content="One. "), LS, second, Delta(content="Two."))
    found = streamed(parse(tools=[BASH]), *deltas)
    done = [event for event in found if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert [event["item"] for event in done] == found[-1]["response"]["output"]
    assert [event["item"]["type"] for event in done] == ["message", "function_call", "function_call", "message"]


def test_one_item_is_open_at_a_time() -> None:
    deltas = (Delta(reasoning="a"), Delta(content="b"), LS, Delta(content="c"), Delta(reasoning="d"))
    is_open = False
    for kind in types(streamed(parse(tools=[BASH]), *deltas)):
        assert kind != "output_item.added" or not is_open
        assert is_open or kind in ("created", "in_progress", "output_item.added", "completed")
        is_open = kind != "output_item.done" if kind.startswith("output_item") else is_open
    assert not is_open


@pytest.mark.parametrize("deltas", [(), (Delta(),), (Delta(reasoning="only this"),)])
def test_an_empty_reply_is_one_empty_message(deltas: tuple[Delta, ...]) -> None:
    found = streamed(parse(), *deltas)
    assert types(found)[-6:] == [
        *("output_item.added", "content_part.added", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    assert found[-2]["item"] == found[-1]["response"]["output"][-1]


def test_what_was_cut_off_is_completed() -> None:
    found = streamed(parse(), Delta(content="and so"), finish_reason="length")
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_it_ends_with_the_object_that_is_not_streamed() -> None:
    request = parse(tools=[BASH])
    deltas = (Delta(reasoning="a"), Delta(content="b"), LS, Delta(content="c"))
    assert streamed(request, *deltas)[-1]["response"] == written(request, *deltas)


def test_the_sdk_reads_every_event() -> None:
    request = parse(tools=[BASH, APPLY_PATCH])
    patch = Delta(tool_call=ToolCall("apply_patch", '{"input":"x"}', "call_2"))
    for event in streamed(request, Delta(reasoning="a"), Delta(content="b"), LS, patch):
        assert SDK_EVENT.validate_python(event).type == event["type"]


def test_text_that_looks_like_a_frame_stays_inside_its_event() -> None:
    text = "a\n\nevent: response.completed\ndata: {}\n\nü\u2028"
    assert streamed(parse(), Delta(content=text))[4]["delta"] == text


class TestBroken:
    @pytest.mark.parametrize(
        ("problem", "code"),
        [
            (Problem(400, "session_sealed", "this session has ended"), "invalid_prompt"),
            (Problem(500, "gateway_error", "could not be kept"), "invalid_prompt"),
            (Overflow(9000, 8192), "context_length_exceeded"),
        ],
    )
    def test_a_final_failure_says_so(self, problem: Problem, code: str) -> None:
        stream = encoder(parse())
        before = events(stream.start() + stream.delta(Delta(content="half a")))
        broken = stream.broken(problem)
        (failed,) = events(broken.last)
        assert broken.clean
        assert (failed["type"], failed["sequence_number"]) == ("response.failed", len(before))
        assert (failed["response"]["status"], failed["response"]["id"]) == ("failed", "resp_s1.0.7")
        assert failed["response"]["error"]["code"] == code
        assert SDK_EVENT.validate_python(failed | {"response": failed["response"] | {"error": None}})

    def test_what_may_pass_is_a_cut_without_a_word(self) -> None:
        """Some harnesses give up at `response.failed` with any code; all retry after a cut."""
        stream = encoder(parse(tools=[BASH]))
        stream.start()
        stream.delta(Delta(content="half a"))
        broken = stream.broken(Problem(502, "engine_error", "gone", retry=True))
        assert (broken.last, broken.clean) == (b"", False)

    def test_an_incomplete_item_is_not_closed(self) -> None:
        stream = encoder(parse(tools=[BASH]))
        stream.start()
        stream.delta(Delta(content="half a"))
        last = stream.broken(Problem(400, "session_sealed", "gone")).last
        assert b"output_item.done" not in last and b"response.completed" not in last

    def test_overflow_has_the_words_harnesses_look_for(self) -> None:
        stream = encoder(parse())
        stream.start()
        error = orjson.loads(stream.broken(Overflow(9000, 8192)).last.split(b"data: ")[1])["response"]["error"]
        assert "maximum context length is 8192 tokens" in error["message"]
