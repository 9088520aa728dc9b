"""Chat Completions, field by field: what a harness sends and what becomes of it, and the reply it gets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.problems import Overflow, Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import FinishReason, Image, Message, Tool, ToolCall

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
BASH = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edit.", "format": {"type": "text"}}}
PIXEL = "data:image/png;base64,AAAA"


def parse(**fields: Any) -> ChatRequest:
    return OpenAIChat().parse(RawRequest({"model": "polar", "messages": HELLO, **fields}))


def message(**fields: Any) -> Message:
    return parse(messages=[fields]).messages[0]


def refused(**fields: Any) -> str | None:
    """The field a request is refused for."""
    with pytest.raises(Problem) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code, caught.value.retry) == (400, "invalid_request", False)
    return caught.value.param


def reply_of(message: Message, finish: FinishReason = "stop") -> Reply:
    return Reply("s1.0.1", 1700000000, "polar", 10, message, (), finish, 5, 4, reasoning_tokens=2)


def choice(message: Message, request: ChatRequest | None = None, finish: FinishReason = "stop") -> dict[str, Any]:
    return orjson.loads(OpenAIChat().reply(request or parse(), reply_of(message, finish)))["choices"][0]


class TestMessages:
    def test_roles(self) -> None:
        roles = ["system", "developer", "user", "assistant", "tool", "developer"]
        parsed = parse(messages=[{"role": role, "content": role} for role in roles]).messages
        assert [m.role for m in parsed] == ["system", "system", "user", "assistant", "tool", "system"]
        assert [m.content for m in parsed] == roles, "a developer's words stay where they are"

    @pytest.mark.parametrize("content", [None, "", []])
    def test_empty_content(self, content: Any) -> None:
        assert message(role="assistant", content=content) == Message(role="assistant")

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_parts_are_one_text_in_any_role(self, role: str) -> None:
        parts = [{"type": "text", "text": "one\n"}, {"text": "two"}]
        assert message(role=role, content=parts).content == "one\ntwo"

    @pytest.mark.parametrize("role", ["user", "tool"])
    def test_images_keep_their_place(self, role: str) -> None:
        parts = [
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            {"type": "text", "text": "above: a cat 🐈; below: "},
            {"type": "image_url", "image_url": "https://example.com/dog.png"},
            {"type": "text", "text": "a dog"},
        ]
        parsed = message(role=role, content=parts)
        assert parsed.content == "above: a cat 🐈; below: a dog"
        assert parsed.images == (
            Image(PIXEL, 0),
            Image("https://example.com/dog.png", parsed.content.index("a dog")),
        )

    def test_the_reasoning_comes_under_either_name(self) -> None:
        assert message(role="assistant", reasoning_content="hm").reasoning == "hm"
        assert message(role="assistant", reasoning="hm").reasoning == "hm"
        assert message(role="assistant", reasoning_content=None, reasoning="hm").reasoning == "hm"
        assert message(role="assistant", reasoning_content="hm", reasoning="other").reasoning == "hm"

    def test_a_refusal_is_what_the_assistant_said(self) -> None:
        assert message(role="assistant", content=None, refusal="No.").content == "No."
        assert message(role="assistant", content=[{"type": "refusal", "refusal": "No."}]).content == "No."
        assert message(role="assistant", content="Yes.", refusal=None).content == "Yes."

    def test_tool_calls_and_their_results(self) -> None:
        calls = [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a":  "ü"}'}},
            {"id": "c2", "function": {"name": "bash", "arguments": {"a": 1}}},
            {"id": "c3", "type": "function", "function": {"name": "ls"}},
            {"id": "c4", "type": "custom", "custom": {"name": "patch", "input": 'say "hi"\n'}},
        ]
        asked, result = parse(
            messages=[
                {"role": "assistant", "content": None, "tool_calls": calls, "function_call": None, "audio": None},
                {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "out"},
            ]
        ).messages
        assert asked.tool_calls == (
            ToolCall("bash", '{"a":  "ü"}', "c1"),
            ToolCall("bash", '{"a":1}', "c2"),
            ToolCall("ls", "", "c3"),
            ToolCall("patch", '{"input":"say \\"hi\\"\\n"}', "c4"),
        )
        assert result == Message(role="tool", content="out", tool_call_id="c1")

    def test_arguments_that_are_no_json_stay_as_they_are(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
        assert message(role="assistant", tool_calls=[call]).tool_calls[0].arguments == "{oops"

    def test_control_tokens_in_a_text_are_text(self) -> None:
        assert message(role="user", content="<|im_end|> <tool_call>").content == "<|im_end|> <tool_call>"

    @pytest.mark.parametrize(
        ("broken", "param"),
        [
            ("hello", "messages[0].role"),
            ({"content": "x"}, "messages[0].role"),
            ({"role": "function", "content": "x"}, "messages[0].role"),
            ({"role": ["user"]}, "messages[0].role"),
            ({"role": "user", "content": 7}, "messages[0].content"),
            ({"role": "user", "content": {"text": "x"}}, "messages[0].content"),
            ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": ["text"], "text": "x"}]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": "file", "file": {}}]}, "messages[0].content[0]"),
            ({"role": "tool", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
            ({"role": "tool", "tool_call_id": 1}, "messages[0].tool_call_id"),
            ({"role": "assistant", "reasoning": {"effort": 1}}, "messages[0].reasoning"),
            ({"role": "assistant", "refusal": True}, "messages[0].refusal"),
            ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
            ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
            ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
            ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
            ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0].custom.name"),
            ({"role": "assistant", "tool_calls": [{"id": 3}]}, "messages[0].tool_calls[0].id"),
        ],
    )
    def test_what_is_no_message_is_named(self, broken: Any, param: str) -> None:
        assert refused(messages=[broken]) == param

    @pytest.mark.parametrize("messages", [None, [], "hello", {"role": "user"}])
    def test_there_must_be_messages(self, messages: Any) -> None:
        assert refused(messages=messages) == "messages"


class TestTools:
    def test_functions_and_custom_tools(self) -> None:
        text_schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        assert parse(tools=[BASH, PATCH]).tools == (
            Tool("bash", "Run.", {"type": "object"}),
            Tool("patch", "Edit.", text_schema, freeform=True),
        )

    def test_a_tool_may_have_a_name_and_no_more(self) -> None:
        assert parse(tools=[{"function": {"name": "ls", "strict": None}}]).tools == (Tool("ls"),)

    def test_a_schema_is_handed_over_to_the_letter(self) -> None:
        schema = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$defs": {"at": {"type": ["string", "null"]}},
            "properties": {"at": {"$ref": "#/$defs/at"}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "maximum": 9007199254740991,
        }
        assert parse(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]).tools == (
            Tool("f", "", schema),
        )

    @pytest.mark.parametrize(
        ("choice", "names"),
        [
            (None, ["bash", "patch"]),
            ("auto", ["bash", "patch"]),
            ("none", []),
            ({"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}, ["patch"]),
            ({"mode": "auto", "tools": []}, []),
        ],
    )
    def test_the_model_sees_what_it_may_call(self, choice: Any, names: list[str]) -> None:
        if isinstance(choice, dict):
            choice = {"type": "allowed_tools", "allowed_tools": choice}
        assert [tool.name for tool in parse(tools=[BASH, PATCH], tool_choice=choice).tools] == names

    @pytest.mark.parametrize("choice", ["auto", "none"])
    def test_a_choice_of_nothing(self, choice: str) -> None:
        assert parse(tool_choice=choice).tools == parse(tool_choice=choice, tools=[]).tools == ()

    @pytest.mark.parametrize(
        "choice",
        [
            "required",
            "any",
            True,
            {"type": "function", "function": {"name": "bash"}},
            {"type": "custom", "custom": {"name": "patch"}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [BASH]}},
            {"type": "allowed_tools"},
        ],
    )
    def test_a_forced_call_is_refused(self, choice: Any) -> None:
        assert refused(tools=[BASH, PATCH], tool_choice=choice) == "tool_choice"

    @pytest.mark.parametrize(
        ("tools", "param"),
        [
            ({}, "tools"),
            ([1], "tools[0].function.name"),
            ([BASH, {"type": "function"}], "tools[1].function.name"),
            ([{"type": "web_search"}], "tools[0]"),
            ([{"type": {}}], "tools[0]"),
            ([{"type": "custom", "custom": {"name": ""}}], "tools[0].custom.name"),
            ([{"function": {"name": "f", "description": 1}}], "tools[0].function.description"),
            ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
        ],
    )
    def test_what_is_no_tool_is_named(self, tools: Any, param: str) -> None:
        assert refused(tools=tools) == param


class TestFields:
    def test_a_request_with_nothing_in_it(self) -> None:
        request = parse()
        assert request.messages == (Message(role="user", content="hello"),)
        assert (request.tools, request.stop, request.json_schema, request.prompt) == ((), (), None, None)
        assert (request.stream, request.include_usage, request.max_tokens, request.asked) == (
            False,
            False,
            None,
            {},
        )

    @pytest.mark.parametrize(
        ("fields", "limit"),
        [
            ({"max_tokens": 3}, 3),
            ({"max_tokens": 32000.0}, 32000),
            ({"max_completion_tokens": 5, "max_tokens": 3}, 5),
            ({"max_completion_tokens": None, "max_tokens": 3}, 3),
        ],
    )
    def test_the_limit(self, fields: dict[str, Any], limit: int) -> None:
        assert parse(**fields).max_tokens == limit

    @pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, []])
    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    def test_a_limit_is_a_number_of_tokens(self, field: str, value: Any) -> None:
        assert refused(**{field: value}) == field

    @pytest.mark.parametrize(
        ("stop", "texts"), [(None, ()), ("END", ("END",)), (["a", "", "b"], ("a", "b")), ([], ())]
    )
    def test_stop_texts(self, stop: Any, texts: tuple[str, ...]) -> None:
        assert parse(stop=stop).stop == texts

    def test_structured_output(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "number", "strict": True, "schema": schema}}
        assert parse(response_format=wanted).json_schema == schema
        assert parse(response_format={"type": "json_object"}).json_schema == {"type": "object"}
        assert parse(response_format={"type": "text"}).json_schema is None
        assert parse(response_format=None).json_schema is None

    def test_streaming(self) -> None:
        request = parse(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
        assert request.stream and request.include_usage
        assert not parse(stream=True, stream_options=None).include_usage

    def test_what_is_asked_of_the_sampling_is_recorded(self) -> None:
        asked = {
            "temperature": 0.2,
            "top_p": 1,
            "top_k": 20,
            "min_p": 0.0,
            "seed": 7,
            "presence_penalty": -1.5,
            "frequency_penalty": 0,
            "repetition_penalty": 1.05,
            "reasoning_effort": "high",
            "enable_thinking": False,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        assert parse(**asked).asked == asked
        assert parse(temperature=None, seed=7.0).asked == {"seed": 7}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", "hot"),
            ("temperature", -0.1),
            ("temperature", True),
            ("top_p", 1.5),
            ("top_k", 2.5),
            ("seed", "x"),
            ("seed", 1e300),
            ("presence_penalty", 3),
        ],
    )
    def test_sampling_that_no_engine_could_follow(self, field: str, value: Any) -> None:
        assert refused(**{field: value}) == field

    @pytest.mark.parametrize(
        "fields",
        [
            {"store": False, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low"},
            {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "moderation": {}},
            {"logprobs": True, "top_logprobs": 5, "parallel_tool_calls": False, "some_new_field": {"a": [1]}},
            {"n": 1, "modalities": ["text"], "audio": None, "functions": [], "logit_bias": {}, "prediction": None},
        ],
    )
    def test_harmless_fields_change_nothing_but_the_digest(self, fields: dict[str, Any]) -> None:
        with_them, without = parse(**fields), parse()
        assert with_them.rest != without.rest
        assert with_them.items == without.items and with_them.asked == without.asked == {}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("n", 2),
            ("n", 0),
            ("logit_bias", {"1": 2}),
            ("functions", [{"name": "f"}]),
            ("function_call", "auto"),
            ("audio", {"voice": "alloy"}),
            ("modalities", ["text", "audio"]),
            ("prediction", {"type": "content", "content": "x"}),
            ("web_search_options", {}),
            ("response_format", "json"),
            ("response_format", {"type": "grammar"}),
            ("stop", 7),
            ("stop", ["x"] * 17),
            ("stream", "yes"),
        ],
    )
    def test_what_cannot_be_honoured_is_refused_by_name(self, field: str, value: Any) -> None:
        assert refused(**{field: value}) == field

    def test_a_schema_must_be_there(self) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "number"}}
        assert refused(response_format=wanted) == "response_format.json_schema.schema"
        assert refused(stream_options={"include_usage": "yes"}) == "stream_options.include_usage"


class TestDigests:
    def test_the_same_request_in_another_order_of_keys(self) -> None:
        raw = {"messages": HELLO, "tools": [BASH], "seed": 1, "user": "u"}
        turned = {key: raw[key] for key in reversed(raw)}
        first, second = (OpenAIChat().parse(RawRequest(data)) for data in (raw, turned))
        assert (first.items, first.rest) == (second.items, second.rest)

    def test_tools_come_first_and_then_each_message(self) -> None:
        short, long = parse(tools=[BASH]), parse(tools=[BASH], messages=[*HELLO, *HELLO])
        assert long.items == (*short.items, short.items[1])
        assert parse(tools=[PATCH]).items[0] != short.items[0]
        assert parse(tools=[]).items == parse(tools=None).items == parse().items

    def test_how_a_reply_is_sent_is_no_part_of_what_is_asked(self) -> None:
        assert parse(stream=True, stream_options={"include_usage": True}).rest == parse().rest
        assert parse(max_tokens=5).rest != parse().rest

    @pytest.mark.parametrize("place", ["messages", "tools", "response_format", "some_new_field"])
    def test_what_is_nested_too_deep_is_refused(self, place: str) -> None:
        deep: Any = "x"
        for _ in range(400):
            deep = [deep]
        values = {"messages": [{"role": "user", "content": "x", "extra": deep}], "tools": deep}
        with pytest.raises(Problem, match="too deep"):
            parse(**{place: values.get(place, {"type": deep})})


class TestReply:
    def test_a_text(self) -> None:
        reply = orjson.loads(OpenAIChat().reply(parse(), reply_of(Message("assistant", "Hi 🐈"))))
        assert reply == {
            "id": "chatcmpl-s1.0.1",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "polar",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hi 🐈", "refusal": None},
                    "finish_reason": "stop",
                    "logprobs": None,
                }
            ],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
        }

    def test_an_empty_reply_is_an_empty_text(self) -> None:
        assert choice(Message("assistant"))["message"]["content"] == ""

    def test_thinking_and_a_call_without_a_text(self) -> None:
        message = Message("assistant", reasoning="hm", tool_calls=(ToolCall("bash", '{"a": "ü"}', "c1"),))
        answered = choice(message, parse(tools=[BASH]), "tool_calls")
        assert answered["finish_reason"] == "tool_calls"
        assert answered["message"] == {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": "ü"}'}}
            ],
        }
        assert '"ü' in OpenAIChat().reply(parse(), reply_of(message)).decode().replace("\\", ""), "not escaped"

    def test_a_text_beside_calls_is_kept(self) -> None:
        message = Message(
            "assistant", "Look:", tool_calls=(ToolCall("bash", "{}", "c1"), ToolCall("bash", "{}", "c2"))
        )
        written = choice(message, parse(tools=[BASH]))["message"]
        assert written["content"] == "Look:" and [call["id"] for call in written["tool_calls"]] == ["c1", "c2"]

    def test_a_custom_call_is_plain_text_again(self) -> None:
        message = Message("assistant", tool_calls=(ToolCall("patch", '{"input": "say \\"hi\\"\\n"}', "c1"),))
        (call,) = choice(message, parse(tools=[BASH, PATCH]))["message"]["tool_calls"]
        assert call == {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": 'say "hi"\n'}}

    def test_a_reply_cut_by_its_limit(self) -> None:
        assert choice(Message("assistant", "and th"), finish="length")["finish_reason"] == "length"


class TestErrors:
    def test_overflow_is_worded_as_harnesses_expect(self) -> None:
        error = OpenAIChat().error(Overflow(9000, 8192))
        body = orjson.loads(error.body)["error"]
        assert (error.status, body["code"], body["type"]) == (
            400,
            "context_length_exceeded",
            "invalid_request_error",
        )
        assert "maximum context length is 8192 tokens" in body["message"]

    def test_a_field_is_named(self) -> None:
        error = OpenAIChat().error(Problem(400, "invalid_request", "no", param="stop"))
        assert orjson.loads(error.body) == {
            "error": {"message": "no", "type": "invalid_request_error", "param": "stop", "code": "invalid_request"}
        }
        assert error.headers["x-should-retry"] == "false"


class TestModels:
    def test_the_listing_and_the_one(self) -> None:
        entry = orjson.loads(OpenAIChat().models("polar", 8192, one=True))
        assert entry == {
            "id": "polar",
            "object": "model",
            "created": 0,
            "owned_by": "polar",
            "max_model_len": 8192,
        }
        assert orjson.loads(OpenAIChat().models("polar", 8192, one=False)) == {"object": "list", "data": [entry]}
