"""Legacy Completions: a prompt its sender has laid out goes in as it is, raw text comes out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.openai_completions import OpenAICompletions
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Delta, FinishReason, Message, token_ids

HEAD = Reply("s1.0.1", 1700000000, "polar", 10)


def parse(**fields: Any) -> ChatRequest:
    return OpenAICompletions().parse(RawRequest({"model": "polar", "prompt": "Once", **fields}))


def refused(**fields: Any) -> str | None:
    with pytest.raises(Problem) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    return caught.value.param


def reply_of(content: str, finish: FinishReason = "stop") -> Reply:
    message, deltas = Message("assistant", content), (Delta(content=content),)
    return Reply("s1.0.1", 1700000000, "polar", 10, message, deltas, finish, 5, 4)


def events(sent: bytes) -> list[Any]:
    payloads = [part.removeprefix("data: ") for part in sent.decode().split("\n\n")[:-1]]
    return [payload if payload == "[DONE]" else orjson.loads(payload) for payload in payloads]


class TestRequest:
    @pytest.mark.parametrize("prompt", ["Once <|im_start|>", ["Once <|im_start|>"]])
    def test_a_text_is_taken_to_the_letter(self, prompt: Any) -> None:
        request = parse(prompt=prompt)
        assert (request.prompt, request.messages, request.tools) == ("Once <|im_start|>", (), ())

    @pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
    def test_token_ids_are_taken_as_they_are(self, prompt: Any) -> None:
        assert parse(prompt=prompt).prompt == token_ids([1, 2, 3])

    @pytest.mark.parametrize(
        "prompt",
        [
            None,
            "",
            [],
            [""],
            [[]],
            ["a", "b"],
            [[1], [2]],
            [1, "a"],
            [1, [2]],
            [1.5],
            [True],
            [-1],
            [2**31],
            [[["a"]]],
            [None],
            {"text": "a"},
            7,
        ],
        ids=str,
    )
    def test_what_is_no_prompt_or_more_than_one(self, prompt: Any) -> None:
        assert refused(prompt=prompt) == "prompt"

    def test_without_a_limit_the_providers_default_counts(self) -> None:
        assert (parse().max_tokens, parse(max_tokens=None).max_tokens, parse(max_tokens=99).max_tokens) == (
            16,
            16,
            99,
        )

    def test_the_other_fields(self) -> None:
        fields = {
            "stop": "\n",
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "seed": 3,
        }
        request = parse(**fields, logprobs=5, user="u", n=1, best_of=1, echo=False, suffix=None)
        assert (request.stop, request.stream, request.include_usage) == (("\n",), True, True)
        assert request.asked == {"temperature": 0, "seed": 3}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("n", 2),
            ("best_of", 3),
            ("echo", True),
            ("suffix", "end"),
            ("logit_bias", {"5": 1}),
            ("max_tokens", 0),
            ("temperature", "hot"),
            ("stop", {}),
            ("stream", 1),
        ],
    )
    def test_what_cannot_be_honoured_is_refused_by_name(self, field: str, value: Any) -> None:
        assert refused(**{field: value}) == field

    def test_the_same_request_is_known_again(self) -> None:
        first, streamed, other = parse(), parse(stream=True), parse(prompt="Twice")
        assert (first.items, first.rest) == (streamed.items, streamed.rest)
        assert len(first.items) == 1 and first.items != other.items and first.rest == other.rest
        assert parse(max_tokens=5).rest != first.rest


class TestReply:
    def test_a_whole_reply(self) -> None:
        assert orjson.loads(OpenAICompletions().reply(parse(), reply_of(" upon a time", "length"))) == {
            "id": "cmpl-s1.0.1",
            "object": "text_completion",
            "created": 1700000000,
            "model": "polar",
            "choices": [{"text": " upon a time", "index": 0, "logprobs": None, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def test_this_api_knows_no_tool_calls(self) -> None:
        reply = orjson.loads(OpenAICompletions().reply(parse(), reply_of("<tool_call>", "tool_calls")))
        assert reply["choices"][0]["finish_reason"] == "stop"


class TestStream:
    def test_chunks_from_the_first_to_the_last(self) -> None:
        encoder = OpenAICompletions().encoder(parse(stream=True), HEAD)
        sent = [
            encoder.start(),
            encoder.heartbeat(),
            encoder.delta(Delta(content=" upon")),
            encoder.delta(Delta()),
        ]
        *chunks, done = events(b"".join(sent) + encoder.end(reply_of(" upon")))
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [choice["text"] for choice in choices] == ["", "", " upon", ""]
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
        assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {("cmpl-s1.0.1", "text_completion")}
        assert done == "[DONE]"

    def test_usage_where_it_is_asked_for(self) -> None:
        encoder = OpenAICompletions().encoder(parse(stream_options={"include_usage": True}), HEAD)
        _, usage, _ = events(encoder.end(reply_of("x")))
        assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 15

    @pytest.mark.parametrize("retry", [True, False])
    def test_a_broken_stream_is_cut(self, retry: bool) -> None:
        problem = Problem(502 if retry else 400, "code", "gone", retry=retry)
        broken = OpenAICompletions().encoder(parse(), HEAD).broken(problem)
        assert not broken.clean and (broken.last == b"") is retry


def test_errors_are_openais() -> None:
    error = OpenAICompletions().error(Problem(401, "invalid_api_key", "unknown key"))
    assert (error.status, orjson.loads(error.body)["error"]["type"]) == (401, "authentication_error")
