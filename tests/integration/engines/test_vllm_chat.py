"""The vLLM engine in chat mode, by contract and against servers that misbehave, over real HTTP.

The server is a fake over a toy model; `tests/e2e/heavy/test_real_vllm_chat.py` asks a real one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import CONTEXT_TOKENS, Handler
from fake_vllm_chat import FakeVllmChat
from running_llama import Connect

from contracts.chat_contract import LOOK, ChatContract, talk, whole_reply
from polar.engines.base import ChatEngine, EngineInfo
from polar.engines.remote.proof import prove_chat
from polar.engines.vllm.engine import VllmEngine
from polar.errors import ChatRefused, EngineBusy, EngineDefect, EngineError
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Message, ToolCall
from waiting import until

Opener = Callable[..., Awaitable[VllmEngine]]


@pytest.fixture
def fake(vocabulary: Vocabulary) -> FakeVllmChat:
    return FakeVllmChat(vocabulary)


@pytest.fixture
def opened(fake: FakeVllmChat, connect: Connect) -> Opener:
    """A started engine in front of the fake server."""

    async def open_engine(**options: Any) -> VllmEngine:
        engine = await connect("vllm", fake.app(), **options)
        await engine.start()
        return engine

    return open_engine


@pytest.mark.parametrize("refuses_sums", [False, True], ids=["new", "older"])
class TestVllmChatByContract(ChatContract):
    @pytest.fixture
    async def started(
        self, vocabulary: Vocabulary, refuses_sums: bool, connect: Connect
    ) -> tuple[VllmEngine, EngineInfo]:
        engine = await connect("vllm", FakeVllmChat(vocabulary, refuses_sums=refuses_sums).app())
        return engine, await engine.start()


async def test_the_request_has_every_field(fake: FakeVllmChat, opened: Opener) -> None:
    engine = await opened(chat_template_kwargs={"enable_thinking": True}, priority=2)
    assert isinstance(engine, ChatEngine)
    await whole_reply(engine, talk(session_id="a-session", max_tokens=3, temperature=0.5, top_k=9, stop=("###",)))
    body, headers = fake.bodies[-1], fake.headers[-1]
    assert (body["model"], body["priority"], body["stop"]) == ("toy", 2, ["###"])
    assert (body["temperature"], body["top_k"], body["repetition_penalty"]) == (0.5, 9, 1.0)
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert headers["x-session-id"] == "a-session"


async def test_reasoning_is_separated_and_rendered_again(opened: Opener) -> None:
    engine = await opened(chat_template_kwargs={"enable_thinking": True})
    asked = talk(max_tokens=60)
    reply = await whole_reply(engine, asked)
    assert (reply.reasoning, reply.content.strip()) == ("Hm, the file.\n", "Yes.")
    assert await engine.count(asked) == len(reply.prompt_ids)
    again = await whole_reply(engine, talk(*asked.messages, reply.message, *asked.messages))
    assert "<think>\nHm, the file.\n" in await engine.decode(again.prompt_ids)


async def test_two_calls_are_two(opened: Opener) -> None:
    engine = await opened()
    asked = talk(Message(role="user", content="Look into é.txt and b.txt"), tools=(LOOK,), max_tokens=90)
    reply = await whole_reply(engine, asked)
    first, second = '{"path": "é.txt"}', '{"path": "b.txt"}'
    assert reply.calls == [ToolCall("look", first, "call-0"), ToolCall("look", second, "call-1")]


async def test_a_server_that_parses_no_calls_names_the_flags(fake: FakeVllmChat, opened: Opener) -> None:
    fake.reads_calls = False
    engine = await opened()
    assert (await whole_reply(engine, talk())).ids
    with pytest.raises(EngineError, match=r"start it with --enable-auto-tool-choice --tool-call-parser") as raised:
        await prove_chat(engine)
    assert not isinstance(raised.value, ChatRefused)


async def test_closing_the_iterator_closes_the_connection(fake: FakeVllmChat, opened: Opener) -> None:
    engine = await opened()
    fake.step_s = 0.01
    pieces = engine.chat(talk(max_tokens=700))
    await anext(pieces)
    await pieces.aclose()
    await until(lambda: fake.abandoned)


async def test_a_held_reply_that_fills_the_context_is_scored_as_far_as_it_can_be(opened: Opener) -> None:
    engine = await opened()
    empty = await engine.count(talk(Message(role="user", content="")))
    full = Message(role="user", content=" one" * (CONTEXT_TOKENS - 3 - empty))
    reply = await whole_reply(engine, talk(full, max_tokens=None, json_schema={"const": {"a": [1, 2]}}))
    assert len(reply.prompt_ids) + len(reply.ids) == CONTEXT_TOKENS
    assert [value == value for value in reply.logprobs] == [True, True, False]


def events(*sent: Any) -> Handler:
    """Says this and ends the stream."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in sent:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    return handler


def event(ids: list[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
    content = [{"token": f"token_id:{i}", "logprob": -i / 10} for i in ids]
    choice = {"token_ids": ids, "logprobs": {"content": content}, "delta": {}, "finish_reason": finish}
    return {"choices": [choice | more]}


PROMPT = {"choices": [], "prompt_token_ids": [1, 2, 3]}


async def refuse_busy(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "full"}, status=503, headers={"Retry-After": "7"})


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (events(event([5], "stop")), EngineDefect, "did not report the ids of the prompt"),
        (events(event([5]), event([6], "stop")), EngineDefect, "did not report the ids of the prompt"),
        (events(PROMPT, event([5], "stop", logprobs=None)), EngineDefect, "1 ids and 0 logprobs"),
        (events(PROMPT, event([5], "stop", logprobs={"content": [{"token": "a"}]})), EngineDefect, "not belong"),
        (
            events(PROMPT, event([5], "stop"), {"choices": [], "usage": {"completion_tokens": 2}}),
            EngineDefect,
            "counts 2 sampled tokens and gave 1",
        ),
        (events(PROMPT, event([5])), EngineError, "ended a reply without a finish reason"),
        (events(PROMPT, event([5]), {"error": {"message": "dead", "code": 500}}), EngineError, "500: dead"),
        (events(PROMPT, event([5]), {"error": {"message": "odd", "code": 400}}), EngineError, "400: odd"),
        (events({"choices": "text"}), EngineDefect, "in an unknown format"),
        (refuse_busy, EngineBusy, "503: full"),
    ],
    ids="no-prompt late-prompt no-logprobs unnamed gap no-end error refused-late shape busy".split(),
)
async def test_a_reply_that_cannot_be_trained_on_is_an_error(
    fake: FakeVllmChat, opened: Opener, answer: Handler, kind: type[Exception], message: str
) -> None:
    engine = await opened()
    fake.instead = answer
    with pytest.raises(kind, match=message) as raised:
        await whole_reply(engine, talk())
    assert not isinstance(raised.value, ChatRefused)


async def test_a_missing_logprob_is_nan_and_counted(fake: FakeVllmChat, opened: Opener) -> None:
    engine = await opened()
    fake.instead = events(PROMPT, event([5]), event([99990], "stop"))
    reply = await whole_reply(engine, talk())
    assert [value == value for value in reply.logprobs] == [True, False]
    assert engine.counters()["missing_logprobs"] == 1


async def test_an_aborted_reply_says_so(fake: FakeVllmChat, opened: Opener) -> None:
    engine = await opened()
    fake.instead = events(PROMPT, event([5, 6]), event([], "abort"))
    reply = await whole_reply(engine, talk())
    assert (list(reply.ids), reply.finish_reason) == ([5, 6], "aborted")


async def test_tokens_held_back_by_a_parser_are_not_lost(fake: FakeVllmChat, opened: Opener) -> None:
    engine = await opened()
    late = event([7], "stop", delta={"content": "late"}, stop_reason=7)
    fake.instead = events(PROMPT, event([5]), event([6]), late)
    reply = await whole_reply(engine, talk())
    assert (list(reply.ids), reply.content, reply.stop_sequence) == ([5, 6, 7], "late", "")
