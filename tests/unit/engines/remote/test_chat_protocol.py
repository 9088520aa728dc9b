"""Chat prompts as requests, and tool calls put together from fragments."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.chat_contract import LOOK, talk
from polar.engines.remote.chat_protocol import ReplyMessage, StreamedReply, chat_fields, whole_deltas
from polar.engines.sglang.chat import chat_body as sglang_body
from polar.engines.sglang.chat import count_body, prompt_tokens_in
from polar.engines.vllm.chat import chat_body as vllm_body
from polar.types import Delta, Image, Message, ToolCall


def reply_message(**fields: Any) -> ReplyMessage:
    return msgspec.convert(fields, ReplyMessage)


def fragment(
    index: int | None, arguments: str | None = None, name: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"index": index, "function": {"name": name, "arguments": arguments}, **more}


def test_messages_keep_what_templates_show() -> None:
    call = ToolCall("look", '{"path":"é"}', "c1")
    messages = (
        Message(role="system", content="Be brief."),
        Message(role="assistant", content="", reasoning="hm", tool_calls=(call,)),
        Message(role="tool", content="nothing", tool_call_id="c1"),
    )
    wire = chat_fields(talk(*messages))["messages"]
    assert wire[0] == {"role": "system", "content": "Be brief."}
    assert (wire[1]["content"], wire[1]["reasoning"], wire[1]["reasoning_content"]) == ("", "hm", "hm")
    assert wire[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"path":"é"}'}
    assert wire[2] == {"role": "tool", "content": "nothing", "tool_call_id": "c1"}


def test_images_stand_where_they_stood() -> None:
    images = (Image("data:a", 4), Image("data:b", 4))
    parts = chat_fields(talk(Message(role="user", content="See this", images=images)))["messages"][0]["content"]
    assert [part.get("text") or part["image_url"]["url"] for part in parts] == ["See ", "data:a", "data:b", "this"]


def test_tools_are_functions_and_the_choice_is_the_models() -> None:
    body = chat_fields(talk(tools=(LOOK,)))
    function = {"name": "look", "description": LOOK.description, "parameters": LOOK.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == "auto"
    assert not {"tools", "tool_choice"} & set(chat_fields(talk()))


def test_the_plain_distribution_is_asked_for_by_name() -> None:
    body = chat_fields(talk())
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "min_tokens": 0, "ignore_eos": False}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {**plain, **penalties, "n": 1, "logprobs": True, "top_logprobs": 0}.items() <= body.items()


def test_max_tokens_are_left_out_where_the_context_is_the_bound() -> None:
    assert chat_fields(talk(max_tokens=9))["max_completion_tokens"] == 9
    assert "max_completion_tokens" not in chat_fields(talk(max_tokens=None))


@pytest.mark.parametrize(("schema", "sent"), [({"const": 1}, {"const": 1}), ({}, {"type": "object"})])
def test_a_schema_is_sent_and_an_empty_one_is_any_object(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    assert chat_fields(talk(json_schema=schema))["response_format"]["json_schema"]["schema"] == sent
    assert "response_format" not in chat_fields(talk())


def test_vllm_is_asked_for_everything_that_training_needs() -> None:
    body = vllm_body("m", talk(stop=("###",), seed=5), {"enable_thinking": False})
    needed = {"return_token_ids": True, "return_tokens_as_token_ids": True, "include_reasoning": True}
    assert {**needed, "stream": True, "include_stop_str_in_output": False}.items() <= body.items()
    assert (body["stop"], body["seed"], body["model"]) == (["###"], 5, "m")
    assert (body["stream_options"], body["chat_template_kwargs"]) == (
        {"include_usage": True},
        {"enable_thinking": False},
    )


def test_sglang_is_asked_for_one_whole_reply() -> None:
    body = sglang_body(talk(seed=2**40 + 3), {}, "r")
    assert body.items() >= {"stream": False, "return_prompt_token_ids": True, "return_meta_info": True}.items()
    assert (body["seed"], body["rid"]) == (3, "r")
    assert "seed" not in sglang_body(talk(seed=None), {}, "r")


def test_sglang_counts_by_the_shortest_reply() -> None:
    body = count_body(talk(max_tokens=None, json_schema={}, stop=("###",)), {})
    assert (body["max_completion_tokens"], body["stop"], body["stream"]) == (1, [], False)
    assert not {"response_format", "return_meta_info"} & set(body)


@pytest.mark.parametrize(
    ("reason", "tokens"),
    [
        ("You requested a total of 30 tokens: 20 tokens from the input messages and 10 tokens for it.", 20),
        ("The input (900 tokens) is longer than the model's context length (768 tokens).", 900),
        ("Input length (900 tokens) exceeds the maximum allowed length (768 tokens).", 900),
        ("Request prompt exceeds the KV memory budget: input_len=900", 900),
        ("a conversation begins with its user", None),
    ],
)
def test_a_refusal_may_tell_the_length_of_the_prompt(reason: str, tokens: int | None) -> None:
    assert prompt_tokens_in(reason) == tokens


def test_text_is_delivered_as_it_comes_reasoning_first() -> None:
    reply = StreamedReply()
    assert reply.add(reply_message(content="")) == ()
    assert reply.add(reply_message(reasoning="hm")) == (Delta(reasoning="hm"),)
    assert reply.add(reply_message(reasoning_content="so", content="Yes")) == (
        Delta(reasoning="so"),
        Delta(content="Yes"),
    )
    assert reply.end(cut=False) == ()


def test_a_call_is_delivered_when_the_next_begins_and_the_last_at_the_end() -> None:
    reply = StreamedReply()
    assert reply.add(reply_message(tool_calls=[fragment(0, name="look", id="c0")])) == ()
    assert reply.add(reply_message(tool_calls=[fragment(0, '{"path"')])) == ()
    assert reply.add(reply_message(tool_calls=[fragment(0, ': "é"}')])) == ()
    both = [fragment(1, "{", "look", id="c1"), fragment(1, "}")]
    assert reply.add(reply_message(tool_calls=both)) == (Delta(tool_call=ToolCall("look", '{"path": "é"}', "c0")),)
    assert reply.end(cut=False) == (Delta(tool_call=ToolCall("look", "{}", "c1")),)
    assert reply.end(cut=False) == ()


def test_several_calls_may_come_in_one_event() -> None:
    reply = StreamedReply()
    calls = [fragment(0, "{}", "a"), fragment(1, "{}", "b"), fragment(2, "{", "c")]
    deltas = reply.add(reply_message(content="So:", tool_calls=calls))
    assert deltas == (
        Delta(content="So:"),
        Delta(tool_call=ToolCall("a", "{}")),
        Delta(tool_call=ToolCall("b", "{}")),
    )


def replied(*events: list[dict[str, Any]], cut: bool = False) -> list[ToolCall]:
    """The calls of a stream with these fragments in its events."""
    reply = StreamedReply()
    deltas = [delta for calls in events for delta in reply.add(reply_message(tool_calls=calls))]
    return [delta.tool_call for delta in (*deltas, *reply.end(cut=cut)) if delta.tool_call is not None]


def test_fragments_of_several_calls_may_alternate() -> None:
    heads = [fragment(0, '{"x":', "a", id="1"), fragment(1, '{"y":', "b", id="2")]
    tails = [fragment(0, "1}"), fragment(1, "2}")]
    expected = [ToolCall("a", '{"x":1}', "1"), ToolCall("b", '{"y":2}', "2")]
    assert replied(heads, tails) == replied([heads[1]], [heads[0], tails[1]], [tails[0]]) == expected


def test_a_call_with_open_arguments_is_waited_for_by_those_after_it() -> None:
    reply = StreamedReply()
    reply.add(reply_message(tool_calls=[fragment(0, "{", "a")]))
    assert reply.add(reply_message(tool_calls=[fragment(1, "{}", "b"), fragment(2, "{", "c")])) == ()
    deltas = reply.add(reply_message(tool_calls=[fragment(0, "}")]))
    assert deltas == (Delta(tool_call=ToolCall("a", "{}")), Delta(tool_call=ToolCall("b", "{}")))
    assert reply.end(cut=True) == ()


def test_a_number_may_have_more_digits() -> None:
    assert replied([fragment(0, "1", "a")], [fragment(1, "{}", "b")], [fragment(0, "2")])[0].arguments == "12"
    assert replied([fragment(0, "1", "a")], cut=True) == []


def test_an_empty_fragment_after_a_delivered_call_is_not_another_call() -> None:
    calls = replied([fragment(0, "{}", "a", id="1")], [fragment(1, "{}", "b", id="2")], [fragment(0, "", id="1")])
    assert calls == [ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2")]


@pytest.mark.parametrize("index", [None, 0], ids=["no index", "one index"])
def test_a_new_id_begins_a_new_call(index: int | None) -> None:
    first = [fragment(index, "{", "a", id="1"), fragment(index, "}", id="1")]
    second = [fragment(index, "{", "a", id="2"), fragment(index, "}")]
    assert replied(first, second) == [ToolCall("a", "{}", "1"), ToolCall("a", "{}", "2")]


def test_a_new_id_may_come_before_its_name() -> None:
    calls = replied([fragment(0, "{}", "a", id="1")], [fragment(0, id="2")], [fragment(0, "{}", "b")])
    assert calls == [ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2")]


def test_a_name_may_be_repeated_under_its_index() -> None:
    assert replied([fragment(0, "{", "a")], [fragment(0, "}", "a")]) == [ToolCall("a", "{}")]


def test_without_index_and_id_a_name_begins_a_new_call() -> None:
    fragments = [fragment(None, "{", "a"), fragment(None, "}"), fragment(None, "{}", "a")]
    assert replied(fragments) == [ToolCall("a", "{}"), ToolCall("a", "{}")]


def test_an_id_may_come_after_its_call_has_begun() -> None:
    assert replied([fragment(0, "{", "a")], [fragment(0, "}", id="1")]) == [ToolCall("a", "{}", "1")]


def test_of_a_reply_that_was_cut_only_complete_calls_are_delivered() -> None:
    fragments = [fragment(0, '{"x"', "a"), fragment(1, "{}", "b"), fragment(2, "", "c"), fragment(3, "{", "d")]
    assert replied(fragments, cut=True) == [ToolCall("b", "{}")]
    assert [call.name for call in replied(fragments)] == ["a", "b", "c", "d"]


def test_arguments_that_are_no_json_are_the_models_own_unless_the_room_cut_them() -> None:
    for cut in (False, True):
        reply = StreamedReply()
        reply.add(reply_message(tool_calls=[fragment(0, '{"path', "look")]))
        assert reply.end(cut=cut) == (() if cut else (Delta(tool_call=ToolCall("look", '{"path')),))


def test_a_call_that_was_complete_before_the_cut_is_delivered() -> None:
    reply = StreamedReply()
    reply.add(reply_message(tool_calls=[fragment(0, '{"path": "a"}', "look")]))
    assert reply.end(cut=True) == (Delta(tool_call=ToolCall("look", '{"path": "a"}')),)


ARGUMENTS = st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3).map(json.dumps)
NO_JSON = st.text(max_size=12).map("<".__add__)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["look", "write"]), ARGUMENTS | NO_JSON), max_size=4),
    cut=st.booleans(),
    data=st.data(),
)
def test_however_fragments_alternate_the_calls_are_the_same(
    calls: list[tuple[str, str]], cut: bool, data: st.DataObject
) -> None:
    """Each call as a head and pieces of its arguments, mixed with those of others and spread over events."""
    waiting: list[list[dict[str, Any]]] = []
    for index, (name, arguments) in enumerate(calls):
        at = data.draw(st.integers(0, len(arguments)))
        head = fragment(index, name=name, id=f"c{index}")
        waiting.append([head, fragment(index, arguments[:at]), fragment(index, arguments[at:])])
    events: list[list[dict[str, Any]]] = [[]]
    while any(waiting):
        events[-1].append(data.draw(st.sampled_from([call for call in waiting if call])).pop(0))
        if data.draw(st.booleans()):
            events.append([])
    whole = [ToolCall(name, arguments, f"c{n}") for n, (name, arguments) in enumerate(calls)]
    expected = [call for call in whole if not (cut and call.arguments.startswith("<"))]
    assert replied(*events, cut=cut) == expected


def test_a_whole_message_says_each_of_its_calls() -> None:
    calls = [fragment(0, "{}", "look", id="c0"), fragment(0, "{}", "look", id="c1")]
    deltas = whole_deltas(reply_message(content="", reasoning_content="hm", tool_calls=calls), cut=False)
    assert deltas == (
        Delta(reasoning="hm"),
        Delta(tool_call=ToolCall("look", "{}", "c0")),
        Delta(tool_call=ToolCall("look", "{}", "c1")),
    )


def test_a_whole_message_that_was_cut_says_only_complete_calls() -> None:
    calls = [fragment(0, "{}", "look", id="c0"), fragment(0, '{"path', "look", id="c1")]
    deltas = whole_deltas(reply_message(content="So", tool_calls=calls), cut=True)
    assert deltas == (Delta(content="So"), Delta(tool_call=ToolCall("look", "{}", "c0")))
