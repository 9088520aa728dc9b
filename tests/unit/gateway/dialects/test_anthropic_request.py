"""Field by field: what becomes of each field of an Anthropic request."""

from __future__ import annotations

from typing import Any

import pytest

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Message, Tool

HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Run a command.", "input_schema": SCHEMA}
SEEN_BASH = Tool(name="bash", description="Run a command.", parameters=SCHEMA)


def parse(action: str = "", **body: Any) -> ChatRequest:
    data = {"model": "polar", "max_tokens": 100, "messages": [HELLO], **body}
    return Anthropic().parse(RawRequest(data, action))


def refusal(action: str = "", **body: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        parse(action, **body)
    assert caught.value.status == 400 and not caught.value.retry
    return caught.value


class TestFields:
    def test_the_least_that_is_a_request(self) -> None:
        request = parse()
        assert request.messages == (Message(role="user", content="hello"),)
        assert (request.max_tokens, request.stream, request.stop, request.tools) == (100, False, (), ())
        assert (request.json_schema, request.asked) == (None, {})

    def test_streaming(self) -> None:
        assert parse(stream=True).stream is True

    def test_stop_sequences(self) -> None:
        assert parse(stop_sequences=["END", "", "\n\n"]).stop == ("END", "\n\n")
        assert refusal(stop_sequences=["x"] * 17).param == "stop_sequences"

    @pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
    def test_max_tokens_must_be_a_number_of_tokens(self, value: Any) -> None:
        assert refusal(max_tokens=value).param == "max_tokens"

    def test_max_tokens_is_required(self) -> None:
        problem = refusal(max_tokens=None)
        assert (problem.param, problem.message) == ("max_tokens", "max_tokens is required")

    def test_sampling_is_recorded(self) -> None:
        request = parse(temperature=0.2, top_p=0.9, top_k=40)
        assert request.asked == {"temperature": 0.2, "top_p": 0.9, "top_k": 40}

    @pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
    @pytest.mark.parametrize("value", ["hot", True, -1, [1]])
    def test_sampling_that_is_no_number_is_refused(self, name: str, value: Any) -> None:
        assert refusal(**{name: value}).param == name

    @pytest.mark.parametrize(
        "thinking",
        [
            {"type": "adaptive", "display": "omitted"},
            {"type": "enabled", "budget_tokens": 32000},
            {"type": "disabled"},
        ],
    )
    def test_thinking_and_effort_are_recorded(self, thinking: dict[str, Any]) -> None:
        request = parse(thinking=thinking, output_config={"effort": "high"})
        assert request.asked == {"thinking": thinking, "effort": "high"}

    @pytest.mark.parametrize("place", ["output_config", "output_format"])
    def test_a_schema_for_the_reply(self, place: str) -> None:
        wanted = {"type": "json_schema", "schema": SCHEMA}
        request = parse(**{place: {"format": wanted} if place == "output_config" else wanted})
        assert request.json_schema == SCHEMA

    @pytest.mark.parametrize("wanted", [{"type": "xml"}, {"type": "json_schema"}, "json", {"schema": {}}])
    def test_another_format_for_the_reply_is_refused(self, wanted: Any) -> None:
        assert refusal(output_config={"format": wanted}).param == "output_config.format"
        assert refusal(output_format=wanted).param == "output_format"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("container", "container_1"),
            ("mcp_servers", [{"type": "url", "url": "http://example.test"}]),
            ("compaction", {"type": "summarize"}),
            ("thread", {"type": "create"}),
        ],
    )
    def test_what_cannot_be_honoured_is_refused_by_name(self, field: str, value: Any) -> None:
        problem = refusal(**{field: value})
        assert problem.param == field and field in problem.message

    @pytest.mark.parametrize(
        "ignored",
        [
            {"container": None, "mcp_servers": [], "thinking": None, "tools": None, "tool_choice": None},
            {"metadata": {"user_id": "u"}, "service_tier": "auto", "inference_geo": "eu", "speed": "fast"},
            {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
            {"cache_control": {"type": "ephemeral"}, "diagnostics": {}, "betas": ["a-beta"]},
            {"fallbacks": "default", "user_profile_id": "u", "workspace_id": "w"},
            {"a_field_of_next_month": {"deep": [1]}},
        ],
    )
    def test_other_fields_change_nothing(self, ignored: dict[str, Any]) -> None:
        plain, other = parse(), parse(**ignored)
        assert (other.messages, other.tools, other.asked) == (plain.messages, plain.tools, plain.asked)

    @pytest.mark.parametrize("messages", [None, [], "hello", {"role": "user"}])
    def test_there_must_be_messages(self, messages: Any) -> None:
        assert refusal(messages=messages).param == "messages"

    def test_a_turn_cannot_be_begun_for_the_model(self) -> None:
        messages = [HELLO, {"role": "assistant", "content": "The answer is"}]
        assert refusal(messages=messages).param == "messages"


class TestCounting:
    def test_a_count_needs_no_limit(self) -> None:
        request = parse("countTokens", max_tokens=None, tools=[BASH], system="S")
        assert request.max_tokens is None and request.tools == (SEEN_BASH,)
        assert [message.role for message in request.messages] == ["system", "user"]

    def test_a_history_that_ends_with_the_assistant_can_be_counted(self) -> None:
        messages = [HELLO, {"role": "assistant", "content": "Hi."}]
        assert len(parse("countTokens", messages=messages).messages) == 2

    def test_what_is_refused_for_a_sample_is_refused_for_a_count(self) -> None:
        assert refusal("countTokens", mcp_servers=[{"name": "x"}]).param == "mcp_servers"


class TestSystem:
    def test_a_text_comes_first(self) -> None:
        assert parse(system="Be brief.").messages[0] == Message(role="system", content="Be brief.")

    def test_blocks_are_joined_by_a_blank_line(self) -> None:
        system = [
            {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": ""},
            {"type": "text", "text": "Two."},
        ]
        assert parse(system=system).messages[0].content == "One.\n\nTwo."

    @pytest.mark.parametrize("system", [None, "", [], [{"type": "text", "text": ""}]])
    def test_a_system_that_says_nothing_is_no_message(self, system: Any) -> None:
        assert len(parse(system=system).messages) == 1

    def test_the_billing_line_is_not_for_the_model(self) -> None:
        billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325.abc;"}
        request = parse(system=[billing, {"type": "text", "text": "S"}])
        assert request.messages[0].content == "S"
        assert request.items[0] != parse(system=[{"type": "text", "text": "S"}]).items[0]

    @pytest.mark.parametrize("system", [5, [5], [{"type": "image"}], [{"type": "text", "text": 5}]])
    def test_other_shapes_are_refused(self, system: Any) -> None:
        assert str(refusal(system=system).param).startswith("system")


class TestDigests:
    def test_one_for_tools_and_system_and_one_per_message(self) -> None:
        request = parse(messages=[HELLO, HELLO], tools=[BASH])
        assert len(request.items) == 3 and request.items[1] == request.items[2]
        assert request.items[0] != parse(tools=[{**BASH, "name": "sh"}]).items[0]
        assert request.items[0] != parse(tools=[BASH], system="S").items[0]

    def test_key_order_does_not_matter(self) -> None:
        turned = {"content": "hello", "role": "user"}
        assert parse(messages=[turned]).items == parse().items
        assert parse(temperature=1, top_k=2).rest == parse(top_k=2, temperature=1).rest

    def test_streaming_is_the_same_request(self) -> None:
        assert parse(stream=True).rest == parse().rest
        assert parse(temperature=0.5).rest != parse().rest

    @pytest.mark.parametrize("place", ["messages", "tools", "system", "other"])
    def test_json_nested_too_deep_is_refused(self, place: str) -> None:
        deep: Any = []
        for _ in range(300):
            deep = [deep]
        body = {"messages": [{**HELLO, "extra": deep}]} if place == "messages" else {place: deep}
        assert refusal(**body).code == "invalid_request"


class TestTools:
    def test_a_function(self) -> None:
        assert parse(tools=[BASH]).tools == (SEEN_BASH,)

    @pytest.mark.parametrize("kind", ["custom", "function", None])
    def test_a_function_may_say_that_it_is_one(self, kind: str | None) -> None:
        assert parse(tools=[{**BASH, "type": kind}]).tools == (SEEN_BASH,)

    def test_what_else_stands_in_a_tool_is_left_alone(self) -> None:
        extra = {"cache_control": {}, "strict": True, "eager_input_streaming": True, "input_examples": [{}]}
        assert parse(tools=[{**BASH, **extra, "allowed_callers": ["direct"]}]).tools == (SEEN_BASH,)

    def test_a_schema_is_handed_on_as_it_is(self) -> None:
        schema = {
            "type": "object",
            "$defs": {"P": {"type": "string"}},
            "properties": {
                "path": {"$ref": "#/$defs/P"},
                "depth": {"anyOf": [{"type": "integer", "maximum": 9007199254740991}, {"type": "null"}]},
            },
        }
        assert parse(tools=[{"name": "f", "input_schema": schema}]).tools[0].parameters == schema

    def test_a_tool_without_arguments(self) -> None:
        assert parse(tools=[{"name": "now"}]).tools == (Tool(name="now"),)

    @pytest.mark.parametrize(
        "kind",
        ["web_search_20250305", "web_fetch_20260318", "code_execution_20250825", "tool_search_tool_bm25_20251119"],
    )
    def test_tools_that_the_provider_runs_are_dropped(self, kind: str) -> None:
        assert parse(tools=[{"type": kind, "name": "x"}, BASH]).tools == (SEEN_BASH,)

    @pytest.mark.parametrize(
        ("kind", "word"),
        [
            ("bash_20250124", "bash"),
            ("text_editor_20250429", "text_editor"),
            ("computer_20251124", "computer"),
            ("memory_20250818", "memory"),
            ("browser_toolset_20260801", "browser_toolset"),
            ("mcp_toolset", "mcp_toolset"),
        ],
    )
    def test_tools_whose_arguments_only_the_provider_knows_are_refused(self, kind: str, word: str) -> None:
        problem = refusal(tools=[{"type": kind, "name": "x"}])
        assert problem.param == "tools[].type" and f"a {word} tool" in problem.message

    def test_with_a_schema_such_a_tool_is_a_function(self) -> None:
        assert parse(tools=[{**BASH, "type": "bash_20250124"}]).tools == (SEEN_BASH,)

    @pytest.mark.parametrize("tool", [{}, {"name": ""}, {"name": 5}, 5, {"name": "f", "input_schema": []}])
    def test_other_shapes_are_refused(self, tool: Any) -> None:
        assert str(refusal(tools=[tool]).param).startswith("tools[].")

    def test_two_tools_with_one_name_are_refused(self) -> None:
        assert refusal(tools=[BASH, BASH]).param == "tools"

    def test_a_choice_of_none_hides_them(self) -> None:
        assert parse(tools=[BASH], tool_choice={"type": "none"}).tools == ()

    def test_a_free_choice_is_what_a_model_has(self) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert parse(tools=[BASH], tool_choice=choice).tools == (SEEN_BASH,)
        assert parse(tool_choice={"type": "auto"}).tools == ()

    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "bash"}, {}, "auto"])
    def test_a_forced_choice_is_refused(self, choice: Any) -> None:
        problem = refusal(tools=[BASH], tool_choice=choice)
        assert problem.param == "tool_choice"
        assert "a forced call is not sampled from the plain model" in problem.message


class TestItems:
    """What tells a grown history from an edited one must not depend on where a cache mark stands."""

    @staticmethod
    def items(*messages: Any, **fields: Any) -> tuple[bytes, ...]:
        data = {"max_tokens": 5, "messages": list(messages), **fields}
        return Anthropic().parse(RawRequest(data)).items

    def test_a_cache_mark_that_moves_on_changes_nothing(self) -> None:
        mark = {"cache_control": {"type": "ephemeral"}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "ok", **mark}]}
        plain = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
        marked = self.items(
            {"role": "user", "content": [{"type": "text", "text": "Hi.", **mark}]},
            {"role": "user", "content": [{**result, **mark}]},
            system=[{"type": "text", "text": "S", **mark}],
        )
        unmarked = self.items(
            {"role": "user", "content": "Hi."},
            {"role": "user", "content": [plain]},
            system=[{"type": "text", "text": "S"}],
        )
        assert marked == unmarked

    def test_anything_else_does(self) -> None:
        told = {"role": "user", "content": "Hi."}
        assert self.items(told) != self.items({"role": "user", "content": "Hi"})
        assert self.items(told) != self.items(told, system="S")
        assert self.items(told)[:2] == self.items(told, {"role": "user", "content": "More."})[:2]
