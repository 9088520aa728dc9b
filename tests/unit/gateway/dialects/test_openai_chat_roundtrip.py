"""Nothing is lost: canonical values to JSON and back, a reply to history, and any JSON at all."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_completions import OpenAICompletions
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest, freeform_tool
from polar.types import Delta, Image, Message, Tool, ToolCall

HEAD = Reply("s1.0.1", 1700000000, "polar", 10)
CHAT = OpenAIChat()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from(["bash", "read", "mcp__files__list", "größe"])
freeform_names = st.sampled_from(["patch", "exec"])
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, values, max_size=3)


@st.composite
def images(draw: st.DrawFn, content: str) -> tuple[Image, ...]:
    places = sorted(draw(st.lists(st.integers(0, len(content)), max_size=2)))
    return tuple(Image(f"data:image/png;base64,{n}", at) for n, at in enumerate(places))


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    made: list[ToolCall] = []
    for index in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            made.append(ToolCall(draw(names), spelled(draw(objects), draw(st.booleans())), f"c{index}"))
        else:
            made.append(ToolCall(draw(freeform_names), spelled({"input": draw(texts)}, False), f"c{index}"))
    return tuple(made)


def spelled(arguments: dict[str, Any], wide: bool) -> str:
    return orjson.dumps(arguments, option=orjson.OPT_INDENT_2 if wide else 0).decode()


@st.composite
def assistants(draw: st.DrawFn) -> Message:
    return Message("assistant", draw(texts), draw(texts), draw(calls()))


@st.composite
def others(draw: st.DrawFn) -> Message:
    role: Any = draw(st.sampled_from(["system", "user", "tool"]))
    content = draw(texts)
    call_id = draw(st.sampled_from(["", "c1"])) if role == "tool" else ""
    return Message(role, content, tool_call_id=call_id, images=draw(images(content)))


tools = st.builds(Tool, name=names, description=texts, parameters=objects) | st.builds(
    freeform_tool, freeform_names, texts
)


def write_content(message: Message) -> Any:
    """As parts, with each image at its position; as a string if there is no image."""
    if not message.images:
        return message.content
    parts: list[Any] = []
    done = 0
    for image in message.images:
        parts.append({"type": "text", "text": message.content[done : image.at]})
        parts.append({"type": "image_url", "image_url": {"url": image.url}})
        done = image.at
    return [*parts, {"type": "text", "text": message.content[done:]}]


def write_call(call: ToolCall) -> dict[str, Any]:
    if call.name in ("patch", "exec"):
        custom = {"name": call.name, "input": orjson.loads(call.arguments)["input"]}
        return {"id": call.call_id, "type": "custom", "custom": custom}
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def write_message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": write_content(message)}
    if message.role == "assistant":
        written["reasoning_content"] = message.reasoning
        written["tool_calls"] = [write_call(call) for call in message.tool_calls]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
    return written


def write_tool(tool: Tool) -> dict[str, Any]:
    if tool.freeform:
        return {"type": "custom", "custom": {"name": tool.name, "description": tool.description}}
    declared = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": declared}


def with_json_arguments(message: Message) -> tuple[Message, list[Any]]:
    """A message without its arguments, and the decoded arguments."""
    bare = tuple(ToolCall(call.name, "", call.call_id) for call in message.tool_calls)
    arguments = [orjson.loads(call.arguments) for call in message.tool_calls]
    return msgspec.structs.replace(message, tool_calls=bare), arguments


@given(st.lists(assistants() | others(), min_size=1, max_size=4), st.lists(tools, max_size=3))
def test_what_is_written_is_read_again(messages: list[Message], declared: list[Tool]) -> None:
    body = {"messages": [*map(write_message, messages)], "tools": [*map(write_tool, declared)]}
    request = CHAT.parse(RawRequest(orjson.loads(orjson.dumps(body))))
    assert [*map(with_json_arguments, request.messages)] == [*map(with_json_arguments, messages)]
    assert request.tools == tuple(declared)
    assert len(request.items) == 1 + len(messages)


PATCHES = ChatRequest(messages=(), tools=(freeform_tool("patch", ""), freeform_tool("exec", "")), stream=True)


@st.composite
def split_up(draw: st.DrawFn, message: Message) -> list[Delta]:
    """A message as deltas, in an order a model might write them; text may follow a call."""

    def pieces(text: str) -> list[str]:
        at = draw(st.integers(0, len(text)))
        return [piece for piece in (text[:at], text[at:]) if piece]

    reasoning = [Delta(reasoning=piece) for piece in pieces(message.reasoning)]
    content = [Delta(content=piece) for piece in pieces(message.content)]
    before = draw(st.integers(0, len(content)))
    return [*reasoning, *content[:before], *(Delta(tool_call=c) for c in message.tool_calls), *content[before:]]


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    message = draw(assistants())
    deltas = draw(split_up(message))
    finish: Any = draw(st.sampled_from(["tool_calls" if message.tool_calls else "stop", "length"]))
    tokens = {"completion_tokens": draw(st.integers(0, 9)), "cached_tokens": draw(st.integers(0, 9))}
    return msgspec.structs.replace(HEAD, message=message, deltas=tuple(deltas), finish_reason=finish, **tokens)


def assemble(sent: bytes) -> dict[str, Any]:
    """The reply object that a harness has assembled at the end of a stream."""
    chunks = [orjson.loads(line[6:]) for line in sent.split(b"\n\n")[:-2]]
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    found: dict[int, dict[str, Any]] = {}
    finish = None
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        finish = choice["finish_reason"] or finish
        for field in ("content", "reasoning_content"):
            if piece := choice["delta"].get(field):
                message[field] = message.get(field, "") + piece
        for part in choice["delta"].get("tool_calls", []):
            call = found.setdefault(part["index"], part)
            if call is not part:
                ((kind, more),) = [(key, value) for key, value in part.items() if key != "index"]
                ((field, text),) = more.items()
                call[kind][field] += text
    if found:
        ordered = [found[index] for index in range(len(found))]
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in ordered]
        message["content"] = message["content"] or None
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    head = {key: chunks[0][key] for key in ("id", "created", "model")}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": chunks[-1]["usage"]}


@given(replies())
def test_a_stream_adds_up_to_the_reply(reply: Reply) -> None:
    request = msgspec.structs.replace(PATCHES, include_usage=True)
    encoder = CHAT.encoder(request, HEAD)
    beats = [part for delta in reply.deltas for part in (encoder.delta(delta), encoder.heartbeat())]
    sent = b"".join([encoder.start(), *beats, encoder.end(reply)])
    assert sent.endswith(b"\n\ndata: [DONE]\n\n")
    assert assemble(sent) == orjson.loads(CHAT.reply(request, reply))


@given(replies())
def test_a_reply_that_comes_back_is_the_message_that_was_sent(reply: Reply) -> None:
    echo = orjson.loads(CHAT.reply(PATCHES, reply))["choices"][0]["message"]
    (message,) = CHAT.parse(RawRequest({"messages": [echo]})).messages
    assert with_json_arguments(message) == with_json_arguments(reply.message)


field_names = st.sampled_from(
    "messages tools tool_choice stop stream stream_options response_format max_tokens temperature top_k seed "
    "prompt n modalities logit_bias allowed_tools type mode function custom name description parameters role "
    "content text image_url url refusal reasoning_content tool_calls id arguments input tool_call_id "
    "json_schema schema".split()
)
field_values = st.sampled_from(
    "function custom text image_url allowed_tools auto none required json_schema json_object user "
    "assistant tool".split()
)
anything = st.recursive(
    scalars | field_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(field_names, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(field_names, anything, max_size=6))
@example({"prompt": [[[["x"]]]]})
@example({"messages": [{"role": "user"}], "tools": [{"type": ["custom"]}]})
@example({"messages": [{"role": "user"}], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": []}}})
def test_anything_at_all_is_read_or_refused(data: dict[str, Any]) -> None:
    for dialect in (CHAT, OpenAICompletions()):
        with contextlib.suppress(Problem):
            dialect.parse(RawRequest(data))
