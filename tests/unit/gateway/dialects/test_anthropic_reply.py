"""What a harness that speaks Anthropic receives: the reply as one object, and as events that make up the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import orjson
import pytest
from anthropic import Anthropic as OfficialClient

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.problems import Problem
from polar.types import Delta, FinishReason, ToolCall

DIALECT = Anthropic()
REQUEST = ChatRequest(messages=())
HEAD = Reply(reply_id="c7", created=1_700_000_000, model="polar", prompt_tokens=40)
LS = ToolCall(name="bash", arguments='{"command":"ls"}', call_id="call_c7_0")
PWD = ToolCall(name="bash", arguments='{"command": "pwd"}', call_id="call_c7_1")
NO_USAGE = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


def a_reply(*deltas: Delta, finish: FinishReason = "stop", **other: Any) -> Reply:
    values = {"completion_tokens": 9, "cached_tokens": 0, **other}
    return msgspec.structs.replace(HEAD, deltas=deltas, finish_reason=finish, **values)


def whole(reply: Reply) -> dict[str, Any]:
    return orjson.loads(DIALECT.reply(REQUEST, reply))


def stream_bytes(reply: Reply) -> bytes:
    encoder = DIALECT.encoder(REQUEST, HEAD)
    parts = [encoder.start(), encoder.heartbeat(), *map(encoder.delta, reply.deltas), encoder.end(reply)]
    return b"".join(parts)


def events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, as a client that trusts only named ones reads them."""
    found: list[dict[str, Any]] = []
    assert stream.endswith(b"\n\n")
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        payload = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        found.append(payload)
    return found


def assemble(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events make up; an order the provider would not send fails."""
    steps = [event for event in found if event["type"] != "ping"]
    assert steps[0]["type"] == "message_start" and steps[-1]["type"] == "message_stop"
    assert steps[-2]["type"] == "message_delta"
    message = steps[0]["message"]
    opened = -1
    is_open = False
    pieces: list[str] = []
    for event in steps[1:-2]:
        kind, index = event["type"], event["index"]
        if kind == "content_block_start":
            assert not is_open and index == opened + 1
            opened, is_open, pieces = index, True, []
            message["content"].append(event["content_block"])
            continue
        assert is_open and index == opened
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = orjson.loads("".join(pieces))
            assert block.get("signature") != "", "a thinking block ends with its signature"
            continue
        assert kind == "content_block_delta"
        apply_delta(block, event["delta"], pieces)
    assert not is_open
    return {**message, **steps[-2]["delta"], "usage": {**message["usage"], **steps[-2]["usage"]}}


def apply_delta(block: dict[str, Any], delta: dict[str, Any], pieces: list[str]) -> None:
    match delta["type"], block["type"]:
        case "text_delta", "text":
            block["text"] += delta["text"]
        case "thinking_delta", "thinking":
            assert block["signature"] == ""
            block["thinking"] += delta["thinking"]
        case "signature_delta", "thinking":
            block["signature"] += delta["signature"]
        case "input_json_delta", "tool_use":
            pieces.append(delta["partial_json"])
        case other:
            raise AssertionError(f"a delta in the wrong block: {other}")


class TestWhole:
    def test_a_text(self) -> None:
        assert whole(a_reply(Delta(content="Hel"), Delta(content="lo."))) == {
            "id": "msg_c7",
            "type": "message",
            "role": "assistant",
            "model": "polar",
            "content": [{"type": "text", "text": "Hello."}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 40, "output_tokens": 9, **NO_USAGE},
        }

    def test_thinking_is_signed_with_the_call(self) -> None:
        content = whole(a_reply(Delta(reasoning="Let "), Delta(reasoning="me."), Delta(content="Hi")))["content"]
        assert content == [
            {"type": "thinking", "thinking": "Let me.", "signature": "polar:c7"},
            {"type": "text", "text": "Hi"},
        ]

    def test_thinking_then_a_call_without_text(self) -> None:
        reply = whole(a_reply(Delta(reasoning="Hm."), Delta(tool_call=LS), finish="tool_calls"))
        assert [block["type"] for block in reply["content"]] == ["thinking", "tool_use"]
        assert reply["stop_reason"] == "tool_use"

    def test_a_call_carries_its_id_and_its_arguments_as_an_object(self) -> None:
        (block,) = whole(a_reply(Delta(tool_call=LS), finish="tool_calls"))["content"]
        assert block == {"type": "tool_use", "id": "call_c7_0", "name": "bash", "input": {"command": "ls"}}

    def test_parallel_calls_are_blocks_of_their_own(self) -> None:
        content = whole(a_reply(Delta(tool_call=LS), Delta(tool_call=PWD), finish="tool_calls"))["content"]
        assert [block["id"] for block in content] == ["call_c7_0", "call_c7_1"]

    def test_text_after_a_call_is_a_new_block(self) -> None:
        deltas = [Delta(content="one"), Delta(tool_call=LS), Delta(content="two"), Delta(content="!")]
        content = whole(a_reply(*deltas, finish="tool_calls"))["content"]
        assert [block.get("text", block["type"]) for block in content] == ["one", "tool_use", "two!"]

    def test_a_delta_that_says_nothing_does_not_split_a_block(self) -> None:
        content = whole(a_reply(Delta(content="a"), Delta(), Delta(content="b")))["content"]
        assert content == [{"type": "text", "text": "ab"}]

    def test_an_empty_completion_is_one_empty_text(self) -> None:
        assert whole(a_reply())["content"] == [{"type": "text", "text": ""}]

    @pytest.mark.parametrize("arguments", ["", "not json", "[1]", '"text"', '{"a": "\\ud800"}', '{"a": NaN}'])
    def test_arguments_that_are_no_object_are_an_empty_one(self, arguments: str) -> None:
        reply = a_reply(Delta(tool_call=ToolCall("f", arguments, "i")), finish="tool_calls")
        assert whole(reply)["content"][0]["input"] == {}
        assert assemble(events(stream_bytes(reply))) == whole(reply)

    def test_arguments_keep_their_spelling(self) -> None:
        arguments = '{"city": "Zürich", "n": 12345678901234567890123, "x": 1.0}'
        reply = a_reply(Delta(tool_call=ToolCall("f", arguments, "i")), finish="tool_calls")
        assert arguments.encode() in DIALECT.reply(REQUEST, reply)
        (part,) = [e["delta"] for e in events(stream_bytes(reply)) if e["type"] == "content_block_delta"]
        assert part["partial_json"] == arguments

    def test_arguments_may_be_nested_deeper_than_we_could_write(self) -> None:
        arguments = '{"a": ' + "[" * 400 + "]" * 400 + "}"
        reply = a_reply(Delta(tool_call=ToolCall("f", arguments, "i")), finish="tool_calls")
        assert arguments.encode() in DIALECT.reply(REQUEST, reply)

    def test_control_tokens_spelled_in_text_stay_text(self) -> None:
        text = 'literal <tool_call> and <|im_end|>\n\nevent: error\ndata: {"x": 1}\n\n'
        reply = a_reply(Delta(content=text))
        assert whole(reply)["content"][0]["text"] == text
        assert assemble(events(stream_bytes(reply))) == whole(reply)


class TestEnding:
    @pytest.mark.parametrize(
        ("finish", "stop_reason"),
        [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"), ("aborted", "end_turn")],
    )
    def test_why_it_ended(self, finish: FinishReason, stop_reason: str) -> None:
        reply = whole(a_reply(Delta(tool_call=LS), finish=finish))
        assert (reply["stop_reason"], reply["stop_sequence"]) == (stop_reason, None)

    def test_a_stop_text_is_named(self) -> None:
        reply = whole(a_reply(Delta(content="a"), stop_sequence="END"))
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")

    def test_a_call_is_not_announced_that_is_not_there(self) -> None:
        assert whole(a_reply(Delta(content="a"), finish="tool_calls"))["stop_reason"] == "end_turn"

    def test_a_call_that_was_cut_off_is_a_length(self) -> None:
        reply = whole(a_reply(Delta(content='<tool_call>{"na'), finish="length"))
        assert reply["stop_reason"] == "max_tokens"
        assert reply["content"] == [{"type": "text", "text": '<tool_call>{"na'}]

    def test_cached_tokens_are_not_counted_twice(self) -> None:
        assert whole(a_reply(cached_tokens=30))["usage"] == {
            "input_tokens": 10,
            "output_tokens": 9,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 0,
        }

    def test_thinking_is_counted_where_there_was_some(self) -> None:
        usage = whole(a_reply(Delta(reasoning="x"), reasoning_tokens=4))["usage"]
        assert usage["output_tokens_details"] == {"thinking_tokens": 4}


class TestStream:
    def test_the_order_of_events(self) -> None:
        reply = a_reply(Delta(reasoning="a"), Delta(content="b"), Delta(tool_call=LS), finish="tool_calls")
        found = events(stream_bytes(reply))
        assert [(e["type"].removeprefix("content_"), e.get("index")) for e in found] == [
            ("message_start", None),
            ("ping", None),
            ("block_start", 0),
            ("block_delta", 0),
            ("block_delta", 0),
            ("block_stop", 0),
            ("block_start", 1),
            ("block_delta", 1),
            ("block_stop", 1),
            ("block_start", 2),
            ("block_delta", 2),
            ("block_stop", 2),
            ("message_delta", None),
            ("message_stop", None),
        ]
        deltas = [event["delta"]["type"] for event in found if event["type"] == "content_block_delta"]
        assert deltas == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]

    def test_it_starts_with_the_real_length_of_the_prompt(self) -> None:
        (start,) = events(DIALECT.encoder(REQUEST, HEAD).start())
        assert start["message"] == {
            "id": "msg_c7",
            "type": "message",
            "role": "assistant",
            "model": "polar",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 40, "output_tokens": 0, **NO_USAGE},
        }

    def test_blocks_begin_empty(self) -> None:
        reply = a_reply(Delta(reasoning="a"), Delta(content="b"), Delta(tool_call=LS), finish="tool_calls")
        found = events(stream_bytes(reply))
        assert [e["content_block"] for e in found if e["type"] == "content_block_start"] == [
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "text", "text": ""},
            {"type": "tool_use", "id": "call_c7_0", "name": "bash", "input": {}},
        ]

    def test_text_goes_out_as_it_comes(self) -> None:
        encoder = DIALECT.encoder(REQUEST, HEAD)
        encoder.start()
        encoder.delta(Delta(content="one "))
        (event,) = events(encoder.delta(Delta(content="two")))
        assert event == {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "two"},
        }

    def test_a_call_goes_out_whole(self) -> None:
        encoder = DIALECT.encoder(REQUEST, HEAD)
        encoder.start()
        assert [e["type"] for e in events(encoder.delta(Delta(tool_call=LS)))] == [
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
        ]

    def test_a_delta_that_says_nothing_sends_nothing(self) -> None:
        assert DIALECT.encoder(REQUEST, HEAD).delta(Delta()) == b""

    def test_a_heartbeat_may_come_while_a_block_is_open(self) -> None:
        reply = a_reply(Delta(content="a"), Delta(content="b"))
        encoder = DIALECT.encoder(REQUEST, HEAD)
        stream = [encoder.start(), encoder.delta(reply.deltas[0]), encoder.heartbeat()]
        stream += [encoder.delta(reply.deltas[1]), encoder.heartbeat(), encoder.end(reply)]
        assert assemble(events(b"".join(stream))) == whole(reply)

    @pytest.mark.parametrize(
        "reply",
        [
            a_reply(),
            a_reply(Delta(reasoning="only thoughts")),
            a_reply(Delta(content="a"), cached_tokens=30, reasoning_tokens=2),
            a_reply(Delta(content="a"), stop_sequence="END"),
            a_reply(Delta(tool_call=LS), Delta(tool_call=PWD), Delta(content="more"), finish="tool_calls"),
            a_reply(Delta(reasoning="a"), Delta(content="b"), Delta(reasoning="c"), finish="length"),
        ],
        ids=["empty", "thinking", "cached", "stop", "calls", "interleaved"],
    )
    def test_it_makes_up_the_same_message(self, reply: Reply) -> None:
        assert assemble(events(stream_bytes(reply))) == whole(reply)

    def test_the_last_usage_is_the_split_one(self) -> None:
        found = events(stream_bytes(a_reply(Delta(content="a"), cached_tokens=30)))
        assert found[-2]["usage"] == {
            "input_tokens": 10,
            "output_tokens": 9,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 0,
        }

    def test_a_stream_that_can_be_asked_for_again_is_cut_without_a_word(self) -> None:
        encoder = DIALECT.encoder(REQUEST, HEAD)
        encoder.start()
        encoder.delta(Delta(content="a"))
        broken = encoder.broken(Problem(502, "engine_error", "the engine failed", retry=True))
        assert (broken.last, broken.clean) == (b"", False)

    def test_a_final_problem_is_sent_and_then_the_stream_is_cut(self) -> None:
        encoder = DIALECT.encoder(REQUEST, HEAD)
        encoder.start()
        broken = encoder.broken(Problem(400, "session_sealed", "the session has ended"))
        (event,) = events(broken.last)
        assert event["type"] == "error" and event["request_id"]
        assert event["error"] == {"type": "invalid_request_error", "message": "the session has ended"}
        assert broken.clean is False

    def test_two_streams_do_not_share_their_state(self) -> None:
        first, second = DIALECT.encoder(REQUEST, HEAD), DIALECT.encoder(REQUEST, HEAD)
        first.delta(Delta(content="a"))
        first.delta(Delta(tool_call=LS))
        assert events(second.delta(Delta(content="b")))[0]["index"] == 0


class TestOfficialClient:
    """The provider's SDK reads the stream and the whole reply as the same message."""

    def client(self, reply: Reply) -> OfficialClient:
        def answer(request: httpx2.Request) -> httpx2.Response:
            if orjson.loads(request.content).get("stream"):
                headers = {"content-type": "text/event-stream"}
                return httpx2.Response(200, headers=headers, content=stream_bytes(reply))
            headers = {"content-type": "application/json"}
            return httpx2.Response(200, headers=headers, content=DIALECT.reply(REQUEST, reply))

        http = httpx2.Client(transport=httpx2.MockTransport(answer))
        return OfficialClient(base_url="http://example.test", api_key="k", http_client=http)

    @pytest.mark.parametrize(
        "reply",
        [
            a_reply(),
            a_reply(
                Delta(reasoning="Let me "), Delta(reasoning="see."), Delta(content="Fine."), reasoning_tokens=3
            ),
            a_reply(Delta(reasoning="Hm."), Delta(tool_call=LS), Delta(tool_call=PWD), finish="tool_calls"),
            a_reply(Delta(content="a"), Delta(tool_call=LS), Delta(content="b"), finish="tool_calls"),
            a_reply(Delta(content="a"), stop_sequence="END", cached_tokens=30),
        ],
        ids=["empty", "thinking", "thinking_and_calls", "text_after_a_call", "stop"],
    )
    def test_it_reads_both_alike(self, reply: Reply) -> None:
        asked: Any = {"model": "polar", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        with self.client(reply) as client:
            sent_whole = client.messages.create(**asked)
            with client.messages.stream(**asked) as stream:
                put_together = stream.get_final_message()
        assert sent_whole.to_dict() == whole(reply)
        assert put_together.to_dict(exclude_none=True) == sent_whole.to_dict(exclude_none=True)
