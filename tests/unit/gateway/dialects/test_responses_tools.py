"""The tools of a Responses request: which the model sees, and under which names."""

from __future__ import annotations

from typing import Any

import pytest
from responses_api import AGENTS, APPLY_PATCH, BASH, TOOL_SEARCH, USER, parse, refused, tools

from polar.types import Tool

ONE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def test_a_function() -> None:
    assert tools(BASH) == (Tool("bash", "Run a command.", BASH["parameters"]),)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("given", [{}, {"parameters": None, "description": None, "strict": None}])
def test_a_function_may_be_just_a_name(given: dict[str, Any]) -> None:
    assert tools({"type": "function", "name": "now", **given}) == (Tool("now"),)


def test_schemas_are_shown_as_they_are() -> None:
    schema = {
        "type": "object",
        "$defs": {"path": {"type": "string"}},
        "properties": {"p": {"$ref": "#/$defs/path"}, "q": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    }
    assert tools({"type": "function", "name": "f", "parameters": schema})[0].parameters == schema


def test_a_custom_tool_is_a_function_with_one_text_and_says_its_grammar() -> None:
    (tool,) = tools(APPLY_PATCH)
    assert tool.freeform and tool.parameters == ONE_TEXT and not tool.namespace
    assert tool.description == ('Edit files.\n\nThe input must follow this lark grammar:\nstart: "*** Begin" /.+/')
    (plain,) = tools({"type": "custom", "name": "say", "format": {"type": "text"}})
    assert (plain.description, plain.freeform) == ("", True)


def test_a_namespace_is_laid_flat() -> None:
    spawn, wait = tools(AGENTS)
    assert (spawn.name, spawn.namespace) == ("multi_agent_v1__spawn", "multi_agent_v1")
    assert spawn.description == "Agents that help.\n\nStart one."
    assert (wait.name, wait.description) == ("multi_agent_v1__wait", "Wait for one.")


def test_a_custom_tool_in_a_namespace() -> None:
    (tool,) = tools({"type": "namespace", "name": "edit", "tools": [APPLY_PATCH]})
    assert (tool.name, tool.namespace, tool.freeform) == ("edit__apply_patch", "edit", True)


def test_the_harness_own_search_is_a_function() -> None:
    (tool,) = tools(TOOL_SEARCH)
    assert (tool.name, tool.description) == ("tool_search", "Find tools.") and tool.parameters


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "file_search", "code_interpreter"])
def test_what_the_provider_would_run_is_left_out(kind: str) -> None:
    assert [tool.name for tool in tools({"type": kind}, BASH)] == ["bash"]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "x"},
        {"type": "computer_use_preview", "display_width": 1},
        {"type": "tool_search"},
        {"type": "tool_search", "execution": "server", "parameters": {"type": "object"}},
        {"type": "tool_search", "execution": "client"},
        {"type": "of next year"},
    ],
)
def test_so_is_everything_that_has_no_schema_and_is_not_run_by_the_harness(tool: dict[str, Any]) -> None:
    assert tools(tool) == ()


@pytest.mark.parametrize("kind", ["local_shell", "shell", "apply_patch"])
def test_tools_of_the_harness_without_a_schema_are_refused(kind: str) -> None:
    assert kind in refused("tools[1].type", tools=[BASH, {"type": kind}])


@pytest.mark.parametrize(
    ("param", "entry"),
    [
        ("tools[0].type", None),
        ("tools[0].type", {"name": "bash"}),
        ("tools[0].name", {"type": "function"}),
        ("tools[0].name", {"type": "function", "function": {"name": "chat's shape"}}),
        ("tools[0].name", {"type": "namespace", "tools": []}),
        ("tools[0].tools", {"type": "namespace", "name": "n", "tools": {}}),
        ("tools[0].tools[0].type", {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}),
        ("tools[0].tools[0].name", {"type": "namespace", "name": "n", "tools": [{"type": "function"}]}),
        ("tools[0].description", {"type": "function", "name": "f", "description": 1}),
    ],
)
def test_a_wrong_shape_is_refused_with_its_place(param: str, entry: Any) -> None:
    refused(param, tools=[entry])


def test_tools_must_be_a_list() -> None:
    refused("tools", tools={"type": "function"})
    refused("input[1].tools", input=[USER, {"type": "additional_tools", "tools": "x"}])
    assert parse(tools=None).tools == parse(tools=[]).tools == ()


def test_none_hides_the_tools() -> None:
    assert parse(tools=[BASH], tool_choice="none").tools == ()
    assert parse(tools=[BASH], tool_choice="auto").tools == parse(tools=[BASH]).tools
    assert parse(tool_choice="auto").tools == ()


def test_the_later_of_two_tools_with_one_name_counts() -> None:
    later = {**BASH, "description": "Another."}
    request = parse(tools=[BASH], input=[{"type": "additional_tools", "tools": [later]}, USER])
    assert [tool.description for tool in request.tools] == ["Another."]


class TestDeferred:
    HIDDEN = {**BASH, "name": "mail", "defer_loading": True}

    def test_shown_where_nothing_could_find_it(self) -> None:
        assert [tool.name for tool in tools(self.HIDDEN)] == ["mail"]
        assert [tool.name for tool in tools(self.HIDDEN, {"type": "tool_search"})] == ["mail"]

    def test_waits_for_the_search(self) -> None:
        assert [tool.name for tool in tools(self.HIDDEN, BASH, TOOL_SEARCH)] == ["bash", "tool_search"]

    def test_shown_once_it_is_found(self) -> None:
        found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [self.HIDDEN]}
        request = parse(tools=[TOOL_SEARCH, self.HIDDEN], input=[USER, found])
        assert [tool.name for tool in request.tools] == ["tool_search", "mail"]

    def test_a_function_that_is_called_like_the_search_is_no_search(self) -> None:
        assert len(tools(self.HIDDEN, {**BASH, "name": "tool_search"})) == 2


def test_a_request_of_a_coding_harness() -> None:
    """Seven functions, a group of agents and a search of the web; the system prompt is a developer's message."""
    functions = [{**BASH, "name": f"f{number}"} for number in range(7)]
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are…"}]}
    request = parse(
        model="m",
        tools=[*functions, AGENTS, {"type": "web_search", "external_web_access": False}],
        input=[developer, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="session",
        client_metadata={},
    )
    assert len(request.tools) == 9 and request.stream
    assert [(m.role, m.content) for m in request.messages] == [("system", "You are…"), ("user", "go")]
