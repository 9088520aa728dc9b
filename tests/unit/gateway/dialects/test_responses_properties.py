"""For any conversation and any reply: what goes through the Responses dialect comes back as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses_api import USER, messages, reply_of, streamed, written

from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest, freeform_tool
from polar.types import Delta, Image, Message, Tool, ToolCall

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
objects = st.dictionaries(texts, json_values, max_size=3)


@st.composite
def plain_tools(draw: st.DrawFn) -> Tool:
    name, description = draw(names), draw(texts)
    namespace = draw(st.just("") | names)
    flat = f"{namespace}__{name}" if namespace else name
    if draw(st.booleans()):
        return freeform_tool(flat, description, namespace)
    return Tool(flat, description, draw(objects), namespace=namespace)


toolboxes = st.lists(plain_tools(), max_size=4, unique_by=lambda tool: tool.name).map(tuple)


@st.composite
def calls(draw: st.DrawFn, tools: tuple[Tool, ...], call_id: str) -> ToolCall:
    """Of a tool of the request, or of one that the model has made up."""
    tool = draw(st.sampled_from([*tools, Tool(f"unknown{draw(names)}")]))
    value = {"input": draw(texts)} if tool.freeform else draw(objects)
    spelled = draw(st.sampled_from([0, orjson.OPT_INDENT_2]))
    return ToolCall(tool.name, orjson.dumps(value, option=spelled).decode(), call_id)


@st.composite
def assistant_messages(draw: st.DrawFn, tools: tuple[Tool, ...], turn: int) -> Message:
    found = tuple(draw(calls(tools, f"call_{turn}_{n}")) for n in range(draw(st.integers(0, 3))))
    return Message(role="assistant", content=draw(texts), reasoning=draw(texts), tool_calls=found)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    tools = draw(toolboxes)
    found: list[Message] = []
    for turn in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from(["system", "user"]))
        found.append(Message(role=role, content=draw(texts)))
        if draw(st.booleans()):
            message = draw(assistant_messages(tools, turn))
            found.append(message)
            for call in message.tool_calls:
                content, images = draw(texts), draw(st.lists(texts.filter(bool), max_size=2))
                placed = tuple(Image(url, len(content)) for url in images)
                found.append(Message(role="tool", content=content, images=placed, tool_call_id=call.call_id))
    return tuple(found), tools


def tool_json(tool: Tool) -> dict[str, Any]:
    name = tool.name.removeprefix(f"{tool.namespace}__") if tool.namespace else tool.name
    if tool.freeform:
        entry: dict[str, Any] = {"type": "custom", "name": name, "description": tool.description}
    else:
        entry = {"type": "function", "name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "namespace", "name": tool.namespace, "tools": [entry]} if tool.namespace else entry


def call_json(call: ToolCall, tools: tuple[Tool, ...]) -> dict[str, Any]:
    tool = next((tool for tool in tools if tool.name == call.name), Tool(call.name))
    item: dict[str, Any] = {"name": call.name, "call_id": call.call_id}
    if tool.namespace:
        item |= {"name": call.name.removeprefix(f"{tool.namespace}__"), "namespace": tool.namespace}
    if tool.freeform:
        return {"type": "custom_tool_call", "input": orjson.loads(call.arguments)["input"], **item}
    return {"type": "function_call", "arguments": call.arguments, **item}


def items_json(message: Message, tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    if message.role == "tool":
        parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.content}]
        parts += [{"type": "input_image", "image_url": image.url} for image in message.images]
        output = parts if message.images else message.content
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    if message.role != "assistant":
        return [{"type": "message", "role": message.role, "content": message.content}]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": message.reasoning}]}
    text = {"role": "assistant", "content": [{"type": "output_text", "text": message.content}]}
    return [thought, text, *(call_json(call, tools) for call in message.tool_calls)]


def comparable(message: Message) -> Message:
    """With each call's arguments spelled in one way."""
    found = tuple(
        msgspec.structs.replace(
            call, arguments=orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS).decode()
        )
        for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=found)


@given(conversations())
def test_a_conversation_is_read_as_it_was_written(given_: tuple[tuple[Message, ...], tuple[Tool, ...]]) -> None:
    history, tools = given_
    body: dict[str, Any] = {
        "tools": [tool_json(tool) for tool in tools],
        "input": [item for message in history for item in items_json(message, tools)],
    }
    request = OpenAIResponses().parse(RawRequest(orjson.loads(orjson.dumps(body))))
    assert request.tools == tools
    assert list(map(comparable, request.messages)) == list(map(comparable, history))
    assert len(request.items) == 1 + len(body["input"])


@st.composite
def replies(draw: st.DrawFn) -> tuple[ChatRequest, tuple[Delta, ...]]:
    tools = draw(toolboxes)
    deltas: list[Delta] = []
    for index in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["reasoning", "content", "tool_call"]))
        if kind == "tool_call":
            deltas.append(Delta(tool_call=draw(calls(tools, f"call_{index}"))))
        else:
            deltas.append(Delta(**{kind: draw(texts)}))
    return ChatRequest(messages=(), tools=tools), tuple(deltas)


@given(replies(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_stream_adds_up_to_the_whole_reply(given_: tuple[ChatRequest, tuple[Delta, ...]], finish: Any) -> None:
    request, deltas = given_
    found = streamed(request, *deltas, finish_reason=finish)
    whole = written(request, *deltas, finish_reason=finish)
    assert found[-1]["response"] == whole
    assert [e["item"] for e in found if e["type"] == "response.output_item.done"] == whole["output"]
    for kind, field in (
        ("output_text", "text"),
        ("reasoning_summary_text", "text"),
        ("function_call_arguments", "arguments"),
        ("custom_tool_call_input", "input"),
    ):
        parts: dict[int, str] = {}
        for event in found:
            if event["type"] == f"response.{kind}.delta":
                parts[event["output_index"]] = parts.get(event["output_index"], "") + event["delta"]
            elif event["type"] == f"response.{kind}.done":
                assert parts.get(event["output_index"], "") == event[field]


@given(replies())
def test_a_reply_that_comes_back_is_the_message_it_was(given_: tuple[ChatRequest, tuple[Delta, ...]]) -> None:
    request, deltas = given_
    output = written(request, *deltas)["output"]
    (user, echo, again) = messages(USER, *output, USER)
    assert user == again
    assert comparable(echo) == comparable(reply_of(deltas).message)


@given(replies())
def test_so_it_is_without_the_ids_and_the_content_of_thoughts(
    given_: tuple[ChatRequest, tuple[Delta, ...]],
) -> None:
    request, deltas = given_
    output = written(request, *deltas)["output"]
    bare = [
        {name: value for name, value in item.items() if name != "id" and not _is_raw(item, name)}
        for item in output
    ]
    (_, echo) = messages(USER, *bare)
    assert comparable(echo) == comparable(reply_of(deltas).message)


def _is_raw(item: dict[str, Any], name: str) -> bool:
    return item["type"] == "reasoning" and name in ("content", "encrypted_content")


item_types = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "tool_search_call", "tool_search_output", "additional_tools"),
        *("function", "custom", "namespace", "tool_search", "input_text", "input_image", "json_schema"),
    ]
)
words = item_types | st.sampled_from(["user", "assistant", "developer", "client", "auto", "none"])
field_names = st.sampled_from(
    [
        *("type", "role", "content", "text", "name", "namespace", "arguments", "input", "output", "call_id", "id"),
        *("summary", "tools", "parameters", "format", "definition", "execution", "image_url", "schema"),
    ]
)
wild = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(field_names | texts, inner, max_size=5),
)
top_names = st.sampled_from(
    [
        *("input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "stream", "reasoning"),
        *("temperature", "background", "conversation", "prompt", "previous_response_id"),
    ]
)
half_right = st.fixed_dictionaries(
    {"input": st.lists(st.dictionaries(field_names, wild, max_size=6), min_size=1, max_size=4)},
    optional={"tools": st.lists(st.dictionaries(field_names, wild, max_size=6), max_size=3), "text": wild},
)


@given(st.dictionaries(top_names | texts, wild, max_size=6) | half_right)
def test_any_json_is_understood_or_refused(data: dict[str, Any]) -> None:
    try:
        request = OpenAIResponses().parse(RawRequest(data))
    except Problem as problem:
        assert problem.status == 400 and problem.message
        return
    assert request.messages
    orjson.dumps(msgspec.to_builtins(request.messages))


@pytest.mark.parametrize("given_", [b'{"input":"\\ud83d\\ude00"}', '{"input":"😀"}'.encode()])
def test_a_character_outside_the_first_plane(given_: bytes) -> None:
    assert OpenAIResponses().parse(RawRequest(orjson.loads(given_))).messages[0].content == "😀"
