"""Anthropic messages as harnesses send them back, and the conversation we make of them."""

from __future__ import annotations

from typing import Any

import pytest
from test_anthropic_request import BASH, HELLO, SEEN_BASH, parse, refusal

from polar.types import Image, Message, Tool, ToolCall

PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PIXEL_URL = "data:image/png;base64,aGk="
DEFERRED = {"name": "edit", "description": "Edit.", "input_schema": {}, "defer_loading": True}
SEEN_EDIT = Tool(name="edit", description="Edit.")


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def tool_use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": arguments}


def read(role: str, content: Any) -> list[Message]:
    """What becomes of one message between two others."""
    messages = [HELLO, {"role": role, "content": content}, HELLO]
    return list(parse(messages=messages).messages[1:-1])


class TestUser:
    @pytest.mark.parametrize("role", ["user", "assistant", "system"])
    def test_a_text_and_a_block_with_it_are_the_same_message(self, role: Any) -> None:
        block = text("same words", cache_control={"type": "ephemeral"})
        assert read(role, "same words") == read(role, [block]) == [Message(role=role, content="same words")]

    def test_texts_stand_as_they_are(self) -> None:
        assert read("user", [text("<note>\n"), text("go")]) == [Message(role="user", content="<note>\ngo")]

    @pytest.mark.parametrize("content", [None, "", []])
    def test_an_empty_message_is_a_message(self, content: Any) -> None:
        assert read("user", content) == [Message(role="user")]

    def test_images_stay_in_their_place(self) -> None:
        address = {"type": "image", "source": {"type": "url", "url": "http://example.test/a.png"}}
        (message,) = read("user", [text("look: "), PIXEL, text("and "), address])
        assert message.content == "look: and "
        assert message.images == (Image(PIXEL_URL, 6), Image("http://example.test/a.png", 10))

    @pytest.mark.parametrize(
        "source",
        [{"type": "file", "file_id": "f"}, {"type": "base64", "data": "x"}, {"type": "url"}, None],
    )
    def test_other_images_are_refused(self, source: Any) -> None:
        problem = refusal(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])
        assert str(problem.param).startswith("messages[].content[].source")

    @pytest.mark.parametrize(
        "kind", ["document", "search_result", "container_upload", "tool_use", "thinking", "never_heard_of"]
    )
    def test_other_blocks_are_refused_by_name(self, kind: str) -> None:
        problem = refusal(messages=[{"role": "user", "content": [{"type": kind, "text": "x"}]}])
        assert problem.param == "messages[].content" and kind in problem.message

    @pytest.mark.parametrize("content", [5, {"type": "text"}, ["text"], [None], [{}], [{"type": 5}]])
    def test_other_shapes_are_refused(self, content: Any) -> None:
        assert str(refusal(messages=[{"role": "user", "content": content}]).param).startswith("messages[]")

    @pytest.mark.parametrize("message", [5, {}, {"role": "tool", "content": "x"}, {"role": ["user"]}])
    def test_other_roles_are_refused(self, message: Any) -> None:
        assert refusal(messages=[message]).param == "messages[].role"


class TestResults:
    def test_each_is_a_message_of_its_own(self) -> None:
        assert read("user", [result("a", "one"), result("b", "two")]) == [
            Message(role="tool", content="one", tool_call_id="a"),
            Message(role="tool", content="two", tool_call_id="b"),
        ]

    def test_content_around_them_keeps_its_position(self) -> None:
        blocks = [text("before"), result("a"), text("be"), text("tween"), result("b"), text("after")]
        assert [(m.role, m.content) for m in read("user", blocks)] == [
            ("user", "before"),
            ("tool", "ok"),
            ("user", "between"),
            ("tool", "ok"),
            ("user", "after"),
        ]

    def test_empty_texts_add_nothing(self) -> None:
        assert [m.role for m in read("user", [text(""), result("a"), text("")])] == ["tool"]

    def test_a_failure_is_marked(self) -> None:
        (message,) = read("user", [result("a", "no such file", is_error=True)])
        assert message == Message(role="tool", content="no such file", tool_call_id="a", is_error=True)

    @pytest.mark.parametrize("content", [None, "", []])
    def test_a_result_may_be_empty(self, content: Any) -> None:
        assert read("user", [result("a", content)]) == [Message(role="tool", tool_call_id="a")]

    def test_blocks_and_a_text_are_the_same_result(self) -> None:
        assert read("user", [result("a", [text("o"), text("k")])]) == read("user", [result("a", "ok")])

    def test_an_image_stays_in_its_result(self) -> None:
        (message,) = read("user", [result("a", [text("shot"), PIXEL])])
        assert (message.role, message.images) == ("tool", (Image(PIXEL_URL, 4),))

    def test_a_document_in_a_result_is_refused(self) -> None:
        messages = [{"role": "user", "content": [result("a", [{"type": "document"}])]}]
        assert "document" in refusal(messages=messages).message


class TestAssistant:
    def test_thinking_text_and_calls(self) -> None:
        blocks = [
            {"type": "thinking", "thinking": "Hm.", "signature": "polar:c7"},
            text("Let me see."),
            tool_use("a", command="ls", path="Zürich"),
            tool_use("b"),
        ]
        assert read("assistant", blocks) == [
            Message(
                role="assistant",
                content="Let me see.",
                reasoning="Hm.",
                tool_calls=(
                    ToolCall("bash", '{"command":"ls","path":"Zürich"}', "a"),
                    ToolCall("bash", "{}", "b"),
                ),
            )
        ]

    @pytest.mark.parametrize("signature", ["polar:c7", "of somebody else", None])
    def test_any_signature_will_do(self, signature: str | None) -> None:
        block = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        assert read("assistant", [block])[0].reasoning == "Hm."

    def test_what_no_model_can_read_is_left_out(self) -> None:
        blocks = [{"type": "redacted_thinking", "data": "x"}, text("Hi."), {"type": "fallback"}]
        assert read("assistant", blocks) == [Message(role="assistant", content="Hi.")]

    def test_text_around_a_call_is_one_content(self) -> None:
        (message,) = read("assistant", [text("one"), tool_use("a"), text("two")])
        assert message.content == "onetwo" and len(message.tool_calls) == 1

    def test_a_call_without_input_has_empty_arguments(self) -> None:
        block = {"type": "tool_use", "id": "a", "name": "bash", "input": None}
        assert read("assistant", [block])[0].tool_calls[0].arguments == "{}"

    @pytest.mark.parametrize(
        "change", [{"input": "text"}, {"input": [1]}, {"name": ""}, {"name": None}, {"id": 5}]
    )
    def test_other_calls_are_refused(self, change: dict[str, Any]) -> None:
        messages = [{"role": "assistant", "content": [{**tool_use("a"), **change}]}, HELLO]
        assert refusal(messages=messages).param == f"messages[].content[].{next(iter(change))}"

    @pytest.mark.parametrize("kind", ["server_tool_use", "web_search_tool_result", "compaction", "image"])
    def test_turns_of_other_models_with_more_in_them_are_refused(self, kind: str) -> None:
        messages = [{"role": "assistant", "content": [{"type": kind}]}, HELLO]
        assert kind in refusal(messages=messages).message


class TestSystemInPlace:
    def test_it_stays_where_it_is(self) -> None:
        messages = [HELLO, {"role": "system", "content": "Note."}, HELLO]
        assert [m.role for m in parse(messages=messages, system="S").messages] == [
            "system",
            "user",
            "system",
            "user",
        ]

    def test_it_may_be_the_last(self) -> None:
        messages = [HELLO, {"role": "system", "content": [text("One."), text("Two.")]}]
        assert parse(messages=messages).messages[-1] == Message(role="system", content="One.\n\nTwo.")

    def test_one_that_says_nothing_is_left_out(self) -> None:
        assert read("system", "") == read("system", []) == []

    def test_what_the_model_has_seen_stays(self) -> None:
        note = {"role": "system", "content": "Note.", "clear_at": "next_user_message"}
        assert parse(messages=[HELLO, note, HELLO]).messages[1].content == "Note."


class TestToolChanges:
    def test_a_deferred_tool_is_not_shown(self) -> None:
        assert parse(tools=[BASH, DEFERRED]).tools == (SEEN_BASH,)

    def test_a_reference_brings_it_in(self) -> None:
        reference = {"type": "tool_reference", "tool_name": "edit"}
        messages = [HELLO, {"role": "user", "content": [result("a", [reference])]}]
        request = parse(messages=messages, tools=[DEFERRED, BASH])
        assert request.tools == (SEEN_EDIT, SEEN_BASH)
        assert request.messages[-1] == Message(role="tool", content="Tool loaded: edit", tool_call_id="a")

    def test_several_references_are_lines(self) -> None:
        references = [{"type": "tool_reference", "tool_name": name} for name in ("edit", "find")]
        (message,) = read("user", [result("a", [text("Found:"), *references])])
        assert message.content == "Found:\nTool loaded: edit\nTool loaded: find"

    def test_a_reference_to_no_tool_of_the_request_shows_nothing(self) -> None:
        reference = {"type": "tool_reference", "tool_name": "gone"}
        messages = [{"role": "user", "content": [result("a", [reference])]}]
        assert parse(messages=messages, tools=[BASH]).tools == (SEEN_BASH,)

    def test_a_reference_needs_a_name(self) -> None:
        messages = [{"role": "user", "content": [result("a", [{"type": "tool_reference"}])]}]
        assert refusal(messages=messages).param == "messages[].content[].tool_name"

    def change(self, kind: str, tool: Any) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    def test_a_system_message_can_add_a_tool_and_take_one_away(self) -> None:
        added = self.change("tool_addition", {"type": "tool_reference", "name": "edit"})
        removed = self.change("tool_removal", {"type": "tool_reference", "name": "bash"})
        request = parse(messages=[HELLO, added, removed], tools=[BASH, DEFERRED])
        assert request.tools == (SEEN_EDIT,)
        assert [message.role for message in request.messages] == ["user"]

    def test_the_last_change_counts(self) -> None:
        reference = {"type": "tool_reference", "name": "edit"}
        changes = [self.change("tool_addition", reference), self.change("tool_removal", reference)]
        assert parse(messages=[HELLO, *changes], tools=[BASH, DEFERRED]).tools == (SEEN_BASH,)

    def test_a_system_message_can_define_a_tool(self) -> None:
        added = self.change("tool_addition", {"type": "tool_definition", "definition": BASH})
        assert parse(messages=[HELLO, added]).tools == (SEEN_BASH,)
        server = {"type": "tool_definition", "definition": {"type": "web_search_20250305", "name": "w"}}
        assert parse(messages=[HELLO, self.change("tool_addition", server)]).tools == ()

    @pytest.mark.parametrize(
        "tool", [None, {"type": "mcp_tool_reference", "name": "x"}, {"type": "tool_reference"}]
    )
    def test_other_changes_are_refused(self, tool: Any) -> None:
        problem = refusal(messages=[HELLO, self.change("tool_addition", tool)])
        assert str(problem.param).startswith("messages[].content[].tool")
