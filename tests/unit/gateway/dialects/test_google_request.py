"""What a harness asks for in Google's dialect beside the conversation, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from google_requests import HELLO, called, model, parse, refusal, user

from polar.gateway.dialects.google import Google
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Message, Tool


class TestActions:
    @pytest.mark.parametrize(
        ("action", "query", "stream", "array"),
        [
            ("generateContent", {}, False, False),
            ("generateContent", {"alt": "sse"}, False, False),
            ("streamGenerateContent", {"alt": "sse"}, True, False),
            ("streamGenerateContent", {}, True, True),
            ("streamGenerateContent", {"alt": "json"}, True, True),
            ("countTokens", {}, False, False),
        ],
    )
    def test_the_path_says_how_the_reply_is_sent(
        self, action: str, query: dict[str, str], stream: bool, array: bool
    ) -> None:
        request = parse(action, query)
        assert (request.stream, request.array) == (stream, array)

    def test_an_unknown_method_is_not_found(self) -> None:
        with pytest.raises(Problem) as caught:
            parse("embedContent")
        assert caught.value.status == 404

    def test_a_whole_request_can_be_counted(self) -> None:
        inner = {
            "model": "models/m",
            "contents": HELLO,
            "systemInstruction": {"parts": [{"text": "S"}]},
            "tools": [{"functionDeclarations": [{"name": "bash"}]}],
        }
        for field in ("generateContentRequest", "generate_content_request"):
            request = Google().parse(RawRequest({field: inner}, "countTokens"))
            assert [m.role for m in request.messages] == ["system", "user"]
            assert request.tools == (Tool(name="bash"),)
        with pytest.raises(Problem):
            Google().parse(RawRequest({"generateContentRequest": [1]}, "countTokens"))

    def test_counting_takes_instruction_and_tools_directly_too(self) -> None:
        request = parse("countTokens", systemInstruction="S", tools=[{"functionDeclarations": [{"name": "bash"}]}])
        assert request.messages[0] == Message(role="system", content="S")
        assert [tool.name for tool in request.tools] == ["bash"]

    def test_only_what_is_counted_may_end_with_the_model(self) -> None:
        history = [*HELLO, model({"text": "hi"})]
        assert parse("countTokens", contents=history).messages[-1].role == "assistant"
        assert refusal(contents=history).param == "contents[1]"


class TestTools:
    def tool(self, **declaration: Any) -> Tool:
        (tool,) = parse(tools=[{"functionDeclarations": [{"name": "f", **declaration}]}]).tools
        return tool

    def test_a_json_schema_is_taken_as_it_is(self) -> None:
        schema = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "$defs": {"p": {"type": "string"}},
            "properties": {"type": {"$ref": "#/$defs/p"}, "nullable": {"anyOf": [{"type": "null"}]}},
        }
        tool = self.tool(description="D", parametersJsonSchema=schema)
        assert tool == Tool(name="f", description="D", parameters=schema)

    def test_googles_schema_becomes_json_schema(self) -> None:
        schema = {
            "type": "OBJECT",
            "properties": {
                "type": {"type": "STRING", "enum": ["A", "B"], "nullable": True},
                "list": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1", "max_items": 4},
                "either": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
                "more": {"type": "OBJECT", "additionalProperties": {"type": "STRING"}, "nullable": False},
                "mixed": {"type": ["STRING", "NULL"]},
                "loose": {"type": "TYPE_UNSPECIFIED", "description": "TYPE", "nullable": True},
                "min_length": {"ref": "#/defs/x"},
            },
            "required": ["type"],
            "propertyOrdering": ["type", "list"],
            "additional_properties": False,
            "defs": {"x": {"type": "STRING"}},
        }
        assert self.tool(parameters=schema).parameters == {
            "type": "object",
            "properties": {
                "type": {"type": ["string", "null"], "enum": ["A", "B", None]},
                "list": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
                "either": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
                "more": {"type": "object", "additionalProperties": {"type": "string"}},
                "mixed": {"type": ["string", "null"]},
                "loose": {"description": "TYPE"},
                "min_length": {"$ref": "#/$defs/x"},
            },
            "required": ["type"],
            "additionalProperties": False,
            "$defs": {"x": {"type": "string"}},
        }

    def test_a_function_may_take_nothing(self) -> None:
        assert self.tool() == self.tool(parameters=None, description=None) == Tool(name="f")

    def test_snake_case_is_the_same(self) -> None:
        tools = [{"function_declarations": [{"name": "f", "parameters_json_schema": {"type": "object"}}]}]
        assert parse(tools=tools).tools == (Tool(name="f", parameters={"type": "object"}),)

    def test_functions_of_all_entries_in_order(self) -> None:
        entries = [
            {"functionDeclarations": [{"name": "a"}, {"name": "b"}]},
            {"functionDeclarations": {"name": "c"}},
        ]
        assert [tool.name for tool in parse(tools=entries).tools] == ["a", "b", "c"]

    def test_what_googles_servers_would_run_is_left_out(self) -> None:
        built_in = [{"googleSearch": {}}, {"urlContext": {}}, {"codeExecution": {}}, {"googleMaps": {}}]
        assert parse(tools=[*built_in, {"functionDeclarations": [{"name": "a"}]}]).tools == (Tool(name="a"),)
        assert parse(tools=built_in).tools == parse(tools=[]).tools == parse(tools=None).tools == ()

    @pytest.mark.parametrize(
        ("tools", "param"),
        [
            ([{"functionDeclarations": [{}]}], "tools[0].functionDeclarations[0].name"),
            ([{"functionDeclarations": "f"}], "tools[0].functionDeclarations"),
            ([{"functionDeclarations": [{"name": 3}]}], "tools[0].functionDeclarations[0].name"),
            (["f"], "tools[0]"),
            ("f", "tools"),
        ],
    )  # fmt: skip
    def test_a_wrong_shape_is_refused(self, tools: Any, param: str) -> None:
        assert refusal(tools=tools).param == param


class TestToolConfig:
    TOOLS: Any = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]

    def names(self, **config: Any) -> list[str]:
        request = parse(tools=self.TOOLS, toolConfig={"functionCallingConfig": config})
        return [tool.name for tool in request.tools]

    @pytest.mark.parametrize("mode", [None, "AUTO", "auto", "VALIDATED", "MODE_UNSPECIFIED"])
    def test_the_model_may_choose(self, mode: Any) -> None:
        assert self.names(mode=mode) == ["a", "b"]

    def test_none_hides_the_tools(self) -> None:
        assert self.names(mode="NONE") == []
        assert parse(tools=self.TOOLS, tool_config={"function_calling_config": {"mode": "NONE"}}).tools == ()

    def test_only_allowed_functions_are_shown(self) -> None:
        assert self.names(mode="VALIDATED", allowedFunctionNames=["b"]) == ["b"]
        assert self.names(mode="AUTO", allowedFunctionNames=[]) == ["a", "b"]

    @pytest.mark.parametrize("mode", ["ANY", "any", "SOMETIMES", 3])
    def test_a_forced_call_is_refused(self, mode: Any) -> None:
        problem = refusal(tools=self.TOOLS, toolConfig={"functionCallingConfig": {"mode": mode}})
        assert problem.param == "toolConfig.functionCallingConfig.mode"

    def test_a_mode_without_tools_is_no_problem(self) -> None:
        assert parse(toolConfig={"functionCallingConfig": {"mode": "AUTO"}}).tools == ()


class TestGenerationConfig:
    def test_limits_and_stops(self) -> None:
        request = parse(generationConfig={"maxOutputTokens": 7, "stopSequences": ["END", ""]})
        assert (request.max_tokens, request.stop) == (7, ("END",))
        request = parse(generation_config={"max_output_tokens": 7.0, "stop_sequences": ["END"]})
        assert (request.max_tokens, request.stop) == (7, ("END",))
        assert (parse().max_tokens, parse().stop, parse().json_schema, parse().asked) == (None, (), None, {})

    def test_sampling_and_thinking_are_recorded_in_our_words(self) -> None:
        config = {
            "temperature": 1,
            "topP": 0.95,
            "topK": 64.0,
            "seed": 5,
            "presencePenalty": 0.1,
            "frequency_penalty": 0.2,
            "thinkingConfig": {"includeThoughts": True, "thinking_budget": -1},
        }
        asked = parse(generationConfig=config).asked
        assert asked == {
            "temperature": 1,
            "top_p": 0.95,
            "top_k": 64,
            "seed": 5,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "thinking": {"includeThoughts": True, "thinkingBudget": -1},
        }
        assert type(asked["top_k"]) is int

    def test_json_with_and_without_a_schema(self) -> None:
        def schema(**config: Any) -> Any:
            return parse(generationConfig=config).json_schema

        own = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}}
        plain = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
        closed = {**plain, "additionalProperties": False}
        assert schema(responseMimeType="application/json", responseSchema=own) == closed
        assert schema(response_mime_type="application/json", response_schema=own) == closed
        nested = {"type": "ARRAY", "items": {**own, "additionalProperties": True}}
        assert schema(responseSchema=nested) == {"type": "array", "items": {**plain, "additionalProperties": True}}
        assert schema(responseMimeType="application/json", responseJsonSchema=plain) == plain
        assert schema(responseJsonSchema=plain) == plain
        assert schema(responseMimeType="application/json") == {"anyOf": [{"type": "object"}, {"type": "array"}]}
        assert schema(responseMimeType="text/plain") is None

    @pytest.mark.parametrize(
        "config",
        [
            {"candidateCount": 1, "responseModalities": ["TEXT"], "responseLogprobs": True, "logprobs": 3},
            {"speechConfig": {}, "mediaResolution": "LOW", "routingConfig": {}, "somethingNew": [1]},
            {"candidateCount": None, "responseModalities": ["text"], "maxOutputTokens": None, "temperature": None},
        ],
    )
    def test_the_rest_is_ignored(self, config: Any) -> None:
        assert parse(generationConfig=config).asked == {}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("candidateCount", 2),
            ("candidateCount", "1"),
            ("responseModalities", ["TEXT", "IMAGE"]),
            ("responseModalities", "TEXT"),
            ("responseMimeType", "text/x.enum"),
            ("responseMimeType", 3),
            ("responseSchema", [1]),
            ("responseJsonSchema", True),
            ("maxOutputTokens", 0),
            ("maxOutputTokens", "7"),
            ("stopSequences", [3]),
            ("stopSequences", ["x"] * 17),
            ("temperature", "hot"),
            ("temperature", True),
            ("topK", 1.5),
            ("seed", float("inf")),
            ("thinkingConfig", "deep"),
        ],
    )
    def test_what_cannot_be_honoured_is_refused(self, field: str, value: Any) -> None:
        assert refusal(generationConfig={field: value}).param == f"generationConfig.{field}"

    def test_a_config_is_an_object(self) -> None:
        assert refusal(generationConfig=[1]).param == "generationConfig"


class TestOtherFields:
    @pytest.mark.parametrize("field", ["cachedContent", "cached_content", "continuationToken"])
    def test_a_conversation_kept_elsewhere_is_refused(self, field: str) -> None:
        assert refusal(**{field: "cachedContents/x"}).param in ("cachedContent", "continuationToken")

    def test_the_rest_is_ignored(self) -> None:
        request = parse(
            safetySettings=[{"category": "X"}],
            labels={"a": "b"},
            model="m",
            store=False,
            serviceTier="x",
            new={"y": 1},
        )
        assert request.messages == parse().messages and request.asked == {}


class TestDigests:
    """Equal items and an equal rest are the same request, sent again."""

    def test_one_for_tools_and_instruction_and_one_for_each_content(self) -> None:
        base = parse(systemInstruction="S", tools=[{"functionDeclarations": [{"name": "f"}]}])
        assert len(base.items) == 2
        assert (
            parse(systemInstruction="T", tools=[{"functionDeclarations": [{"name": "f"}]}]).items[0]
            != base.items[0]
        )
        assert parse(systemInstruction="S").items[0] != base.items[0]
        assert parse(system_instruction="S", tools=[{"functionDeclarations": [{"name": "f"}]}]).items == base.items

    def test_a_longer_history_begins_with_the_same_items(self) -> None:
        longer = parse(contents=[*HELLO, model({"text": "hi"}), user({"text": "go on"})])
        assert longer.items[:2] == parse().items and longer.rest == parse().rest

    def test_the_order_of_keys_and_the_way_of_sending_do_not_matter(self) -> None:
        sent = {"temperature": 1, "topP": 1}
        again = {"topP": 1, "temperature": 1}
        one = parse("generateContent", generationConfig=sent)
        two = parse("streamGenerateContent", {"alt": "sse"}, generationConfig=again)
        assert (one.items, one.rest) == (two.items, two.rest)

    @pytest.mark.parametrize(
        "other", [{"generationConfig": {"seed": 1}}, {"toolConfig": {}}, {"labels": {"a": "b"}}]
    )
    def test_everything_else_is_the_rest(self, other: Any) -> None:
        assert parse(**other).items == parse().items
        assert parse(**other).rest != parse().rest

    def test_json_that_is_nested_too_deep_is_refused(self) -> None:
        deep: Any = []
        for _ in range(300):
            deep = [deep]
        for body in (
            {"contents": [model(called("f", a=deep)), *HELLO]},
            {"tools": [{"functionDeclarations": [{"name": "f", "parameters": {"items": deep}}]}]},
            {"generationConfig": {"responseSchema": {"items": deep}}},
        ):
            assert refusal(**body).code == "invalid_request"
