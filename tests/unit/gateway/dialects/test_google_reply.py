"""What a harness receives in Google's dialect: whole replies, streams, errors, listings."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from google_replies import ARRAY, EVENTS, HEAD, assembled, events, parts_of, reply_of, stream, whole

from polar.gateway.dialects.google import Google
from polar.gateway.dialects.problems import Overflow, Problem
from polar.types import Delta, ToolCall

SIGNATURE = base64.b64encode(b"c0ffee").decode()
LS = ToolCall(name="bash", arguments='{"command": "ls",  "n": 1.50}', call_id="call_c0ffee_0")
PWD = ToolCall(name="bash", arguments='{"command": "pwd"}', call_id="call_c0ffee_1")
ENGINE_DOWN = Problem(502, "engine_error", "the engine failed", retry=True)


class TestWholeReply:
    def test_all_of_it(self) -> None:
        deltas = [
            Delta(reasoning="h"),
            Delta(reasoning="m"),
            Delta(content="Hel"),
            Delta(content="lo"),
            Delta(tool_call=LS),
        ]
        reply = reply_of(deltas, "tool_calls", completion_tokens=20, reasoning_tokens=5, cached_tokens=90)
        assert whole(reply) == {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [
                            {"text": "hm", "thought": True, "thoughtSignature": SIGNATURE},
                            {"text": "Hello"},
                            {
                                "functionCall": {
                                    "id": "call_c0ffee_0",
                                    "name": "bash",
                                    "args": {"command": "ls", "n": 1.5},
                                },
                                "thoughtSignature": SIGNATURE,
                            },
                        ],
                    },
                    "index": 0,
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {
                "promptTokenCount": 100,
                "candidatesTokenCount": 15,
                "thoughtsTokenCount": 5,
                "cachedContentTokenCount": 90,
                "totalTokenCount": 120,
            },
            "modelVersion": "polar",
            "responseId": "c0ffee",
        }

    def test_parts_stand_in_the_order_they_were_said(self) -> None:
        deltas = [
            Delta(content="a"),
            Delta(tool_call=LS),
            Delta(tool_call=PWD),
            Delta(content="b"),
            Delta(reasoning="c"),
        ]
        kinds = [next(iter(part)) for part in parts_of(whole(reply_of(deltas)))]
        assert kinds == ["text", "functionCall", "functionCall", "text", "text"]

    @pytest.mark.parametrize("deltas", [[], [Delta()], [Delta(content="")]])
    def test_an_empty_completion_is_one_empty_text(self, deltas: list[Delta]) -> None:
        assert parts_of(whole(reply_of(deltas))) == [{"text": ""}]

    @pytest.mark.parametrize(
        ("finish", "word"),
        [("stop", "STOP"), ("tool_calls", "STOP"), ("length", "MAX_TOKENS"), ("aborted", "OTHER")],
    )
    def test_how_it_ended(self, finish: Any, word: str) -> None:
        reply = reply_of([Delta(content="x")], finish)
        assert whole(reply)["candidates"][0]["finishReason"] == word
        assert events(stream(EVENTS, reply))[-1]["candidates"][0]["finishReason"] == word

    def test_a_call_without_an_id_has_none(self) -> None:
        (part,) = parts_of(whole(reply_of([Delta(tool_call=ToolCall("f", "{}"))])))
        assert part["functionCall"] == {"name": "f", "args": {}}

    @pytest.mark.parametrize("arguments", ["", "{}", "[1]", "not JSON"])
    def test_arguments_that_are_no_object_are_none(self, arguments: str) -> None:
        (part,) = parts_of(whole(reply_of([Delta(tool_call=ToolCall("f", arguments, "c"))])))
        assert part["functionCall"]["args"] == {}

    def test_other_languages_are_not_escaped(self) -> None:
        call = ToolCall("f", '{"city": "\\u6771京"}', "c")
        sent = Google().reply(EVENTS, reply_of([Delta(content="ñandú"), Delta(tool_call=call)]))
        assert "東京".encode() in sent and "ñandú".encode() in sent


class TestEvents:
    def test_a_reply_in_chunks(self) -> None:
        reply = reply_of([Delta(reasoning="hm"), Delta(content="Hi"), Delta(tool_call=LS)], "tool_calls")
        chunks = events(stream(EVENTS, reply))
        assert [parts_of(chunk) for chunk in chunks] == [
            [{"text": ""}],
            [{"text": "hm", "thought": True, "thoughtSignature": SIGNATURE}],
            [{"text": "Hi"}],
            [{"functionCall": whole_call(LS), "thoughtSignature": SIGNATURE}],
            [{"text": ""}],
        ]
        assert all((chunk["responseId"], chunk["modelVersion"]) == ("c0ffee", "polar") for chunk in chunks)
        assert assembled(chunks) == whole(reply)

    def test_only_the_last_chunk_ends_and_counts(self) -> None:
        *before, last = events(stream(EVENTS, reply_of([Delta(content="Hi")]), heartbeats=True))
        assert not any("usageMetadata" in chunk or "finishReason" in chunk["candidates"][0] for chunk in before)
        assert last["usageMetadata"]["totalTokenCount"] == 120
        assert last["candidates"][0]["finishReason"] == "STOP"

    def test_the_first_bytes_come_before_the_first_token(self) -> None:
        (chunk,) = events(Google().encoder(EVENTS, HEAD).start())
        assert parts_of(chunk) == [{"text": ""}]

    def test_a_heartbeat_goes_on_with_what_is_being_said(self) -> None:
        encoder = Google().encoder(EVENTS, HEAD)
        beats = [encoder.heartbeat()]
        for delta in (Delta(reasoning="hm"), Delta(content="Hi"), Delta(tool_call=LS)):
            encoder.delta(delta)
            beats.append(encoder.heartbeat())
        assert [parts_of(events(beat)[0]) for beat in beats] == [
            [{"text": ""}],
            [{"text": "", "thought": True}],
            [{"text": ""}],
            [{"text": ""}],
        ]

    def test_heartbeats_add_nothing(self) -> None:
        reply = reply_of([Delta(reasoning="h"), Delta(reasoning="m"), Delta(content="H"), Delta(content="i")])
        assert assembled(events(stream(EVENTS, reply, heartbeats=True))) == whole(reply)

    def test_an_empty_delta_sends_nothing(self) -> None:
        assert Google().encoder(EVENTS, HEAD).delta(Delta()) == b""

    @pytest.mark.parametrize("character", ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\r", "\n\n"])
    def test_a_chunk_is_one_line_for_every_reader(self, character: str) -> None:
        text = f"a{character}data: b"
        call = ToolCall("f", orjson.dumps({"x": text}).decode(), "c")
        for delta in (Delta(content=text), Delta(reasoning=text), Delta(tool_call=call)):
            sent = Google().encoder(EVENTS, HEAD).delta(delta)
            assert len(sent.decode().rstrip().splitlines()) == 1
            (part,) = parts_of(events(sent)[0])
            assert text == (part["functionCall"]["args"]["x"] if delta.tool_call else part["text"])

    def test_a_broken_stream_is_an_error_by_itself_and_then_a_cut(self) -> None:
        encoder = Google().encoder(EVENTS, HEAD)
        encoder.start()
        broken = encoder.broken(ENGINE_DOWN)
        assert not broken.clean
        error = orjson.loads(broken.last)["error"]
        assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
        assert b"finishReason" not in broken.last and b"\n" not in broken.last.rstrip()


class TestArray:
    def test_the_same_chunks_as_one_json_array(self) -> None:
        reply = reply_of([Delta(reasoning="hm"), Delta(content="Hi"), Delta(tool_call=LS)], "tool_calls")
        for heartbeats in (False, True):
            sent = stream(ARRAY, reply, heartbeats)
            assert sent.startswith(b'[{"candidates"') and sent.endswith(b"}\n]") and b"}\n,\r\n{" in sent
            assert orjson.loads(sent) == events(stream(EVENTS, reply, heartbeats))

    def test_it_grows_by_whole_chunks(self) -> None:
        """A reader that closes the array itself can read it at any time."""
        encoder = Google().encoder(ARRAY, HEAD)
        sent = encoder.start()
        assert len(orjson.loads(sent + b"]")) == 1
        sent += encoder.heartbeat() + encoder.delta(Delta(content="x")) + encoder.delta(Delta())
        assert len(orjson.loads(sent + b"]")) == 3

    def test_a_broken_one_is_never_closed(self) -> None:
        encoder = Google().encoder(ARRAY, HEAD)
        sent = encoder.start()
        broken = encoder.broken(ENGINE_DOWN)
        assert not broken.clean
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(sent + broken.last)
        assert orjson.loads(sent + broken.last + b"]")[1]["error"]["code"] == 503


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "sent", "word"),
        [
            (400, 400, "INVALID_ARGUMENT"),
            (401, 401, "UNAUTHENTICATED"),
            (403, 403, "PERMISSION_DENIED"),
            (404, 404, "NOT_FOUND"),
            (405, 405, "UNIMPLEMENTED"),
            (413, 413, "INVALID_ARGUMENT"),
            (418, 418, "INVALID_ARGUMENT"),
            (429, 429, "RESOURCE_EXHAUSTED"),
            (499, 499, "CANCELLED"),
            (500, 500, "INTERNAL"),
            (502, 503, "UNAVAILABLE"),
            (503, 503, "UNAVAILABLE"),
            (504, 504, "DEADLINE_EXCEEDED"),
            (599, 599, "INTERNAL"),
        ],
    )
    def test_statuses(self, status: int, sent: int, word: str) -> None:
        reply = Google().error(Problem(status, "some_code", "because"))
        error = orjson.loads(reply.body)["error"]
        assert (reply.status, error["code"], error["status"], error["message"]) == (sent, sent, word, "because")
        assert error["details"] == [
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SOME_CODE", "domain": "polar"}
        ]

    def test_a_field_is_named(self) -> None:
        problem = Problem(400, "invalid_request", "no", param="generationConfig.seed")
        violation = orjson.loads(Google().error(problem).body)["error"]["details"][1]
        assert violation == {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "generationConfig.seed", "description": "no"}],
        }

    @pytest.mark.parametrize(("seconds", "delay"), [(3.0, "3s"), (0.25, "0.25s"), (90, "90s")])
    def test_when_to_ask_again(self, seconds: float, delay: str) -> None:
        reply = Google().error(Problem(429, "busy", "later", retry=True, retry_after_s=seconds))
        assert orjson.loads(reply.body)["error"]["details"][-1] == {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": delay,
        }
        assert reply.headers["x-should-retry"] == "true" and int(reply.headers["retry-after"]) >= 1

    def test_a_final_error_is_not_asked_again(self) -> None:
        assert Google().error(Problem(400, "session_sealed", "over")).headers == {"x-should-retry": "false"}

    def test_an_overflow_in_the_providers_words(self) -> None:
        reply = Google().error(Overflow(9000, 8192))
        error = orjson.loads(reply.body)["error"]
        assert (reply.status, error["status"]) == (400, "INVALID_ARGUMENT")
        sentence = "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."
        assert error["message"] == sentence


def test_counting_and_listing() -> None:
    assert orjson.loads(Google().count(7)) == {"totalTokens": 7}
    one = orjson.loads(Google().models("polar", 8192, one=True))
    assert one == {
        "name": "models/polar",
        "displayName": "polar",
        "inputTokenLimit": 8192,
        "outputTokenLimit": 8192,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    assert orjson.loads(Google().models("polar", 8192, one=False)) == {"models": [one]}


def whole_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "name": call.name, "args": orjson.loads(call.arguments)}
