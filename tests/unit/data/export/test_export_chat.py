"""Conversations in chat form: who said what, and which replies a row trains on."""

from __future__ import annotations

from pathlib import Path

from exported_sessions import BASH, PROMPT, a_call, a_group, a_session, exported, lines, two_turns
from polar.data.export.chat import openai_message
from polar.data.export.plan import ExportPlan
from polar.types import Image, Message, ToolCall

SFT = ExportPlan("sft")


def test_a_session_with_a_tool_is_one_conversation(tmp_path: Path) -> None:
    """The reply stands as the model wrote it: the trace continues its tokens, whatever the harness repeated."""
    exported(tmp_path / "set", SFT, a_group(a_session("t-0", 1.0)))
    (row,) = lines(tmp_path / "set")
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    assert row["messages"] == [
        {"role": "user", "content": "to first"},
        {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [call], "weight": 1},
        {"role": "tool", "content": "a.txt", "tool_call_id": "c1"},
        {"role": "assistant", "content": "reply of second", "weight": 1},
    ]
    function = {"name": "bash", "description": "Runs a command.", "parameters": {"type": "object"}}
    assert row["tools"] == [{"type": "function", "function": function}]
    assert (row["session_id"], row["task_id"], row["kind"], row["reward"]) == ("t-0", "t", "agent", 1.0)


def test_a_branch_trains_only_on_its_own_reply(tmp_path: Path) -> None:
    """Two requests continue the same one. Its reply is trained on once, and is context in the other row."""
    first, second = two_turns()
    again = a_call(
        "again",
        [*PROMPT, 10, 11, 9],
        [9],
        [20],
        parent_id="first",
        continues=True,
        tools=None,
        new_messages=(first.response, Message(role="user", content="Try again.")),
    )
    report = exported(tmp_path / "set", SFT, a_group(a_session("t-0", 1.0, [first, second, again])))
    rows = lines(tmp_path / "set")
    weights = [[m["weight"] for m in row["messages"] if m["role"] == "assistant"] for row in rows]
    assert weights == [[1, 1], [0, 1]]
    assert [row["messages"][-1]["content"] for row in rows] == ["reply of second", "reply of again"]
    assert report["trained_tokens"] == len([10, 11]) + len([12, 13, 14]) + len([20])


def test_a_prompt_that_was_rendered_anew_has_what_the_harness_sent(tmp_path: Path) -> None:
    first, _ = two_turns()
    edited = Message(role="assistant", content="shortened by the harness")
    anew = a_call("anew", [7, 8], [7, 8], [21], parent_id="first", new_messages=(edited,), tools=(BASH,))
    exported(tmp_path / "set", SFT, a_group(a_session("t-0", 1.0, [first, anew])))
    row = lines(tmp_path / "set")[-1]
    assert [m["content"] for m in row["messages"]] == ["to first", "shortened by the harness", "reply of anew"]
    assert row["messages"][1]["weight"] == 0


def test_arguments_can_be_objects() -> None:
    calls = (ToolCall("bash", '{"command": "ls"}', "c1"), ToolCall("bash", "not json", "c2"))
    made = openai_message(Message(role="assistant", tool_calls=calls), object_arguments=True)
    found = [call["function"]["arguments"] for call in made["tool_calls"]]
    assert found == [{"command": "ls"}, "not json"], "what is no object stays as the model wrote it"


def test_images_stand_where_they_were() -> None:
    message = Message(role="user", content="before after", images=(Image("data:image/png;base64,AA==", 7),))
    assert openai_message(message)["content"] == [
        {"type": "text", "text": "before "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "text", "text": "after"},
    ]


def test_a_reply_that_was_cut_off_is_not_taught_as_an_end(tmp_path: Path) -> None:
    """A chat template would end it. Its tokens can be trained on as they are."""
    cut = a_call("cut", PROMPT, PROMPT, [10], finish_reason="length")
    group = a_group(a_session("t-0", 1.0, [cut]))
    report = exported(tmp_path / "chat", SFT, group)
    assert (report["rows"], report["left_out"]["traces"]) == (0, {"reply_cut_off": 1})
    assert exported(tmp_path / "ids", ExportPlan("tokens"), group)["rows"] == 1
    assert exported(tmp_path / "all", ExportPlan("sft", allow_inexact=True), group)["rows"] == 1
