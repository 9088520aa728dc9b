"""What a harness sends to the Responses path, field by field, and what the model is shown of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from responses_api import AGENTS, APPLY_PATCH, BASH, USER, messages, parse, refused

from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Image, Message, ToolCall

PIXEL = "data:image/png;base64,AAAA"
ASSISTANT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
CALL = {"type": "function_call", "name": "bash", "arguments": '{"command":"ls"}', "call_id": "c1"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}]}


def test_a_text_is_one_message_of_the_user() -> None:
    assert parse(input="hello").messages == (Message(role="user", content="hello"),)


def test_instructions_come_first() -> None:
    assert parse(instructions="Be brief.", input="hello").messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="hello"),
    )
    assert parse(instructions=None).messages == (Message(role="user", content="go"),)


def test_system_and_developer_messages_stay_where_they_stand() -> None:
    roles = [
        message.role
        for message in messages(
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
            USER,
            {"role": "system", "content": "S"},
            {"role": "assistant", "content": "A"},
        )
    ]
    assert roles == ["system", "user", "system", "assistant"]


def test_parts_are_joined_and_images_keep_their_place() -> None:
    (message,) = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see "},
                {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
                {"type": "input_text", "text": "this"},
            ],
        }
    )
    assert message == Message(role="user", content="see this", images=(Image(PIXEL, 4),))


def test_a_refusal_is_what_the_assistant_said() -> None:
    (message,) = messages({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})
    assert message == Message(role="assistant", content="No.")


@pytest.mark.parametrize("content", [None, "", [], [{"type": "input_text", "text": None}]])
def test_no_content_is_empty(content: Any) -> None:
    assert messages({"role": "user", "content": content}) == (Message(role="user"),)


def test_control_tokens_in_text_are_text() -> None:
    text = 'literal <tool_call>{"name":1}</tool_call> and <|im_end|> – “ü”'
    assert messages({"role": "user", "content": text})[0].content == text


def test_neighbouring_items_of_the_model_are_one_turn() -> None:
    second = {**CALL, "call_id": "c2", "arguments": '{"command": "pwd"}'}
    found = messages(USER, THOUGHT, ASSISTANT, CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2", "output": "/"})
    assert found == (
        Message(role="user", content="go"),
        Message(
            role="assistant",
            content="Let me see.",
            reasoning="Look first.",
            tool_calls=(
                ToolCall("bash", '{"command":"ls"}', "c1"),
                ToolCall("bash", '{"command": "pwd"}', "c2"),
            ),
        ),
        Message(role="tool", content="a.txt", tool_call_id="c1"),
        Message(role="tool", content="/", tool_call_id="c2"),
    )


def test_a_result_ends_the_turn() -> None:
    found = messages(USER, CALL, OUTPUT, {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"}, ASSISTANT)
    assert [message.role for message in found] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_text_after_a_call_belongs_to_the_same_turn() -> None:
    (message,) = messages(ASSISTANT, CALL, {"role": "assistant", "content": " Done."})
    assert message.content == "Let me see. Done." and len(message.tool_calls) == 1


def test_a_thought_and_a_call_without_text() -> None:
    (message,) = messages(THOUGHT, CALL)
    assert (message.reasoning, message.content, len(message.tool_calls)) == ("Look first.", "", 1)


def test_two_messages_that_were_sent_as_two_stay_two() -> None:
    found = messages({"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"})
    assert [message.content for message in found] == ["one", "two"]


def test_items_of_two_replies_are_two_turns() -> None:
    def with_id(item: Any, item_id: str) -> Any:
        return {**item, "id": item_id}

    found = messages(
        with_id(THOUGHT, "rs_s.0.1_0"),
        with_id(ASSISTANT, "msg_s.0.1_1"),
        with_id(THOUGHT, "rs_s.0.2_0"),
        with_id(CALL, "fc_s.0.2_1"),
    )
    assert [(m.content, m.reasoning, len(m.tool_calls)) for m in found] == [
        ("Let me see.", "Look first.", 0),
        ("", "Look first.", 1),
    ]
    # An id that a harness has made up says nothing about replies.
    assert len(messages(with_id(ASSISTANT, "msg_s.0.1_0"), with_id(CALL, "fc_1234"))) == 1


def test_reasoning_is_read_from_its_content_and_else_from_its_summary() -> None:
    raw = {
        **THOUGHT,
        "content": [{"type": "reasoning_text", "text": "All"}, {"type": "reasoning_text", "text": " of it."}],
    }
    assert messages(raw)[0].reasoning == "All of it."
    two = {"type": "reasoning", "summary": [{"text": "One."}, {"text": "Two."}], "content": None}
    assert messages(two)[0].reasoning == "One.\n\nTwo."
    assert messages({"type": "reasoning", "summary": []})[0].reasoning == ""


@pytest.mark.parametrize("encrypted", [None, "", "gAAAAAB-foreign", "s1.0.7"])
def test_encrypted_reasoning_is_taken_whatever_it_says(encrypted: str | None) -> None:
    assert messages({**THOUGHT, "encrypted_content": encrypted})[0].reasoning == "Look first."


def test_arguments_are_kept_as_they_are_spelled() -> None:
    spelled = '{ "command" :"echo ü","n":1.0}'
    assert messages({**CALL, "arguments": spelled})[0].tool_calls[0].arguments == spelled
    assert messages({**CALL, "arguments": "not JSON"})[0].tool_calls[0].arguments == "not JSON"
    assert messages({**CALL, "arguments": {"a": 1}})[0].tool_calls[0].arguments == '{"a":1}'
    assert messages({**CALL, "arguments": None})[0].tool_calls[0].arguments == ""


def test_a_result_may_be_a_list_with_images() -> None:
    output = [{"type": "input_text", "text": "a screen:"}, {"type": "input_image", "image_url": PIXEL}]
    assert messages(CALL, {**OUTPUT, "output": output})[1] == Message(
        role="tool", content="a screen:", images=(Image(PIXEL, 9),), tool_call_id="c1"
    )


def test_a_custom_call_is_a_call_with_one_text() -> None:
    patch = '*** Begin "x"\n+ü'
    called, result = messages(
        {"type": "custom_tool_call", "name": "apply_patch", "input": patch, "call_id": "c1"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    )
    (call,) = called.tool_calls
    assert (call.name, orjson.loads(call.arguments)) == ("apply_patch", {"input": patch})
    assert result == Message(role="tool", content="ok", tool_call_id="c1")


def test_a_call_in_a_namespace_has_the_name_the_model_knows() -> None:
    (message,) = messages({**CALL, "name": "spawn", "namespace": "multi_agent_v1"})
    assert message.tool_calls[0].name == "multi_agent_v1__spawn"


def test_a_search_for_tools_is_a_call_and_its_result_brings_tools() -> None:
    request = parse(
        input=[
            {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "mail"}},
            {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [AGENTS, BASH]},
        ]
    )
    called, result = request.messages
    assert called.tool_calls == (ToolCall("tool_search", '{"query":"mail"}', "c1"),)
    names = ["multi_agent_v1__spawn", "multi_agent_v1__wait", "bash"]
    assert orjson.loads(result.content) == {"tools": names} and result.tool_call_id == "c1"
    assert [tool.name for tool in request.tools] == names


def test_a_search_that_a_provider_ran_is_no_call() -> None:
    request = parse(
        input=[
            USER,
            {"type": "tool_search_call", "execution": "server", "arguments": {}, "call_id": None},
            {"type": "tool_search_output", "execution": "server", "tools": [BASH], "call_id": None},
        ]
    )
    assert len(request.messages) == 1 and [tool.name for tool in request.tools] == ["bash"]


def test_notes_of_a_providers_tools_are_passed_over_and_do_not_part_a_turn() -> None:
    note = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    (message,) = messages(THOUGHT, note, CALL)
    assert message.reasoning and message.tool_calls


def test_tools_inside_the_input() -> None:
    request = parse(input=[{"type": "additional_tools", "role": "developer", "tools": [APPLY_PATCH, BASH]}, USER])
    assert [(tool.name, tool.freeform) for tool in request.tools] == [("apply_patch", True), ("bash", False)]
    assert request.messages == (Message(role="user", content="go"),)


REFUSED_ITEMS = (
    *("item_reference", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output", "program"),
    *("program_output", "code_interpreter_call", "image_generation_call", "mcp_call", "mcp_approval_request"),
    *("mcp_approval_response", "compaction", "compaction_trigger", "configuration_update", "of next year"),
)


@pytest.mark.parametrize("kind", REFUSED_ITEMS)
def test_items_that_cannot_be_shown_are_refused(kind: str) -> None:
    assert refused("input[1].type", input=[USER, {"type": kind, "id": "x", "call_id": "c"}])


def test_a_reference_says_what_to_do_instead() -> None:
    assert "send the item itself" in refused("input[0].type", input=[{"type": "item_reference", "id": "msg_1"}])
    assert "a type or a role" in refused("input[0].type", input=[{"id": "msg_1"}])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_file", "file_id": "f"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "computer_screenshot"},
        {"text": "no type"},
        "no object",
    ],
)
def test_parts_other_than_text_and_images_are_refused(part: Any) -> None:
    refused("input[0].content[0].type", input=[{"role": "user", "content": [part]}])
    refused("input[0].output[0].type", input=[{**OUTPUT, "output": [part]}])


@pytest.mark.parametrize(
    ("param", "data"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input", {"input": {"role": "user"}}),
        ("input[0].type", {"input": [None]}),
        ("input[0].role", {"input": [{"role": "tool", "content": "x"}]}),
        ("input[0].role", {"input": [{"type": "message", "content": "x"}]}),
        ("input[0].content", {"input": [{"role": "user", "content": 7}]}),
        (
            "input[0].content[0].text",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 7}]}]},
        ),
        (
            "input[0].content[0]",
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        ),
        ("input[0].name", {"input": [{**CALL, "name": ""}]}),
        ("input[0].namespace", {"input": [{**CALL, "namespace": 1}]}),
        ("input[0].call_id", {"input": [{**CALL, "call_id": 1}]}),
        ("input[0].output", {"input": [{**OUTPUT, "output": {"a": 1}}]}),
        ("input[0].input", {"input": [{"type": "custom_tool_call", "name": "a", "input": {}}]}),
        ("input[0].summary", {"input": [{"type": "reasoning", "summary": "text"}]}),
        ("instructions", {"instructions": ["a"]}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": {"id": "conv_1"}}),
        ("conversation", {"conversation": "conv_1"}),
        ("background", {"background": True}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "bash"}, "tools": [BASH]}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
    ],
)
def test_refused_with_the_place(param: str, data: dict[str, Any]) -> None:
    refused(param, **data)


def test_what_a_refused_field_says_when_it_says_nothing_is_accepted() -> None:
    parse(previous_response_id=None, conversation=None, background=False, prompt=None, tool_choice=None)


def test_ignored_and_unknown_fields_change_nothing() -> None:
    plain = parse(tools=[BASH])
    adorned = parse(
        tools=[BASH],
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        truncation="auto",
        service_tier="flex",
        metadata={"a": "b"},
        user="u",
        safety_identifier="s",
        parallel_tool_calls=False,
        text={"verbosity": "low"},
        max_tool_calls=3,
        top_logprobs=5,
        context_management=[{"type": "compaction"}],
        of_next_year={"deep": [1]},
    )
    for name in ("messages", "tools", "json_schema", "asked", "max_tokens", "items"):
        assert getattr(adorned, name) == getattr(plain, name)


def test_sampling_and_thinking_are_recorded() -> None:
    request = parse(
        temperature=0.2, top_p=0.9, reasoning={"effort": "high", "summary": "auto"}, max_output_tokens=64.0
    )
    assert request.asked == {"temperature": 0.2, "top_p": 0.9, "reasoning": {"effort": "high", "summary": "auto"}}
    assert request.max_tokens == 64
    assert parse(temperature=None, reasoning=None).asked == {}


def test_a_schema_for_the_reply() -> None:
    schema = {"type": "object", "$defs": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    strict = {"type": "json_schema", "name": "n", "strict": True, "schema": schema}
    assert parse(text={"format": strict}).json_schema == schema
    assert parse(text={"format": {"type": "json_object"}}).json_schema == {"type": "object"}
    assert parse(text={"format": {"type": "text"}}).json_schema is None
    assert parse(text={"verbosity": "high"}).json_schema is None


def test_streaming_is_asked_for() -> None:
    assert parse(stream=True).stream and not parse(stream=False).stream and not parse().stream


class TestDigests:
    def test_one_for_tools_and_instructions_and_one_for_each_item(self) -> None:
        first = parse(input=[USER], tools=[BASH], instructions="i")
        grown = parse(input=[USER, ASSISTANT, USER], tools=[BASH], instructions="i")
        assert len(first.items) == 2 and grown.items[:2] == first.items and len(grown.items) == 4
        assert parse(input="a").items != parse(input="b").items and len(parse(input="a").items) == 2

    def test_other_tools_or_instructions_are_another_first_item(self) -> None:
        firsts = {parse(**data).items[0] for data in ({}, {"tools": [BASH]}, {"instructions": "i"})}
        assert len(firsts) == 3

    def test_blind_to_key_order_and_to_streaming(self) -> None:
        one = parse(input=[{"role": "user", "content": "a"}], stream=True, store=False)
        two = parse(store=False, input=[{"content": "a", "role": "user"}])
        assert (one.items, one.rest) == (two.items, two.rest)

    def test_what_is_an_item_is_not_in_the_rest(self) -> None:
        assert parse(input="other", tools=[BASH], instructions="i").rest == parse().rest

    @pytest.mark.parametrize("data", [{"temperature": 0.5}, {"client_metadata": {"thread": "2"}}, {"model": "n"}])
    def test_anything_else_that_differs_makes_another_request(self, data: dict[str, Any]) -> None:
        assert parse(**data).rest != parse().rest


def test_a_body_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(Problem, match="nested too deep"):
        OpenAIResponses().parse(RawRequest({"input": [{"role": "user", "content": "a", "extra": deep}]}))


def test_a_message_of_another_agent_is_read_as_it_was_written() -> None:
    head = "Message Type: NEW_TASK\nSender: /root\nPayload:\n"
    parts = [{"type": "input_text", "text": head}, {"type": "encrypted_content", "encrypted_content": "Go."}]
    item = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": parts}
    request = OpenAIResponses().parse(RawRequest({"input": [{"role": "user", "content": "hi"}, item]}))
    assert request.messages[1:] == (Message(role="user", content=f"{head}Go."),)
