"""Properties of Google's dialect: what is written and read again is the same, and nothing crashes it."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
from google_replies import ARRAY, EVENTS, assembled, events, reply_of, stream, whole
from hypothesis import given
from hypothesis import strategies as st

from polar.gateway.dialects.google import Google
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, Image, Message, Tool, ToolCall

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SOME_TEXT = TEXTS.filter(bool)
NAMES = st.sampled_from(["bash", "read_file", "ns__tool"])
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
SCHEMAS = st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "x-y"]), VALUES, max_size=3)
IMAGES = st.sampled_from([(), (Image(url="data:image/png;base64,aGk=", at=0),)])
TOOLS = st.builds(Tool, name=NAMES, description=TEXTS, parameters=SCHEMAS)


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[Message]:
    """What the user says, what the model says and calls, and what the tools answer, in any order."""
    user = Message(role="user", content=draw(TEXTS), images=draw(IMAGES))
    calls = tuple(
        ToolCall(name=draw(NAMES), arguments=orjson.dumps(draw(OBJECTS)).decode(), call_id=f"id_{number}_{index}")
        for index in range(draw(st.integers(0, 3)))
    )
    model = Message(role="assistant", content=draw(TEXTS), reasoning=draw(TEXTS), tool_calls=calls)
    answers = [
        Message(role="tool", content=draw(TEXTS), tool_call_id=call.call_id, is_error=draw(st.booleans()))
        for call in draw(st.permutations(calls))
    ]
    return [user, model, *answers]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    system = draw(TEXTS)
    found = [Message(role="system", content=system)] if system else []
    for number in range(draw(st.integers(0, 3))):
        found += draw(turns(number))
    return [*found, Message(role="user", content=draw(TEXTS))]


def request_json(messages: list[Message], tools: list[Tool], *, with_ids: bool) -> dict[str, Any]:
    """What a client sends for a conversation."""
    body: dict[str, Any] = {
        "contents": [],
        "tools": [{"functionDeclarations": [tool_json(tool) for tool in tools]}],
    }
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "system":
            body["systemInstruction"] = {"role": "user", "parts": [{"text": message.content}]}
            continue
        names |= {call.call_id: call.name for call in message.tool_calls}
        role = "model" if message.role == "assistant" else "user"
        body["contents"].append({"role": role, "parts": parts_json(message, names, with_ids=with_ids)})
    return body


def tool_json(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}


def parts_json(message: Message, names: dict[str, str], *, with_ids: bool) -> list[dict[str, Any]]:
    def named(call_id: str, **rest: Any) -> dict[str, Any]:
        return {**({"id": call_id} if with_ids else {}), "name": names[call_id], **rest}

    if message.role == "tool":
        response = {"error" if message.is_error else "output": message.content}
        return [{"functionResponse": named(message.tool_call_id, response=response)}]
    parts: list[dict[str, Any]] = [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}} for _ in message.images
    ]
    parts += [{"text": message.reasoning, "thought": True}] if message.reasoning else []
    parts += [{"text": message.content}] if message.content else []
    for call in message.tool_calls:
        parts.append({"functionCall": named(call.call_id, args=orjson.loads(call.arguments))})
    return parts


@given(conversations(), st.lists(TOOLS, max_size=3))
def test_a_conversation_is_read_as_it_was_meant(messages: list[Message], tools: list[Tool]) -> None:
    request = Google().parse(RawRequest(request_json(messages, tools, with_ids=True), "generateContent"))
    assert list(request.messages) == messages
    assert list(request.tools) == tools


@given(conversations())
def test_without_ids_every_answer_finds_a_call_of_its_name(messages: list[Message]) -> None:
    body = request_json(messages, [], with_ids=False)
    read = Google().parse(RawRequest(body, "generateContent")).messages
    names = {call.call_id: call.name for message in read for call in message.tool_calls}
    answered = [message.tool_call_id for message in read if message.role == "tool"]
    assert len(set(answered)) == len(answered) == len(names)
    meant = {call.call_id: call.name for message in messages for call in message.tool_calls}
    expected = [meant[message.tool_call_id] for message in messages if message.role == "tool"]
    assert [names[call_id] for call_id in answered] == expected


DELTAS = st.lists(
    st.builds(Delta, reasoning=SOME_TEXT)
    | st.builds(Delta, content=SOME_TEXT)
    | st.builds(
        lambda name, value, number: Delta(
            tool_call=ToolCall(name, orjson.dumps(value).decode(), f"call_{number}")
        ),
        NAMES,
        OBJECTS,
        st.integers(0, 99),
    ),
    max_size=6,
)


@given(DELTAS, st.sampled_from(["stop", "length", "tool_calls"]), st.booleans())
def test_a_stream_adds_up_to_the_whole_reply(deltas: list[Delta], finish: Any, heartbeats: bool) -> None:
    reply = reply_of(deltas, finish, completion_tokens=20, reasoning_tokens=3, cached_tokens=1)
    assert assembled(events(stream(EVENTS, reply, heartbeats))) == whole(reply)
    assert assembled(orjson.loads(stream(ARRAY, reply, heartbeats))) == whole(reply)


def json_equal(call: ToolCall) -> tuple[str, Any, str]:
    return call.name, orjson.loads(call.arguments), call.call_id


@given(DELTAS, st.booleans(), st.booleans())
def test_a_reply_that_comes_back_is_the_message_that_was_sent(
    deltas: list[Delta], streamed: bool, chunk_by_chunk: bool
) -> None:
    reply = reply_of(deltas)
    chunks = events(stream(EVENTS, reply, heartbeats=True)) if streamed else [whole(reply)]
    replies = chunks if chunk_by_chunk else [assembled(chunks)]
    history = [chunk["candidates"][0]["content"] for chunk in replies]
    (message,) = Google().parse(RawRequest({"contents": history}, "countTokens")).messages
    assert (message.role, message.content, message.reasoning) == (
        "assistant",
        reply.message.content,
        reply.message.reasoning,
    )
    assert list(map(json_equal, message.tool_calls)) == list(map(json_equal, reply.message.tool_calls))


FIELDS = st.sampled_from(
    "contents systemInstruction tools toolConfig generationConfig generateContentRequest parts role text thought "
    "inlineData mimeType data functionCall functionResponse functionDeclarations name args id response parameters "
    "parametersJsonSchema type items properties nullable anyOf enum functionCallingConfig mode candidateCount "
    "allowedFunctionNames maxOutputTokens stopSequences temperature topK responseSchema responseMimeType".split()
)
WORDS = st.sampled_from(
    ["user", "model", "f", "AUTO", "NONE", "OBJECT", "image/png", "application/json", "", "\ud800"]
)
ANYTHING = st.recursive(
    SCALARS | WORDS | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | TEXTS, inner, max_size=4),
    max_leaves=20,
)
BODIES = st.dictionaries(FIELDS, ANYTHING, max_size=5)
CONTENTS = st.lists(
    st.dictionaries(st.sampled_from(["role", "parts"]), WORDS | st.lists(BODIES, max_size=3)), max_size=3
)


@given(
    BODIES, CONTENTS | st.none(), st.sampled_from(["generateContent", "streamGenerateContent", "countTokens", "x"])
)
def test_nothing_a_harness_sends_is_a_crash(body: dict[str, Any], contents: Any, action: str) -> None:
    sent = body if contents is None else {**body, "contents": contents}
    with contextlib.suppress(Problem):
        request = Google().parse(RawRequest(sent, action))
        assert request.messages and len(request.items) >= 2
