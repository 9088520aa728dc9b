"""The engine `endpoint` against a fake of each API, and against llama.cpp's own OpenAI server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from running_llama import LlamaServer

from fake_endpoint import KEY, KEY_VARIABLE, Answer, Answers, FakeEndpoint, fake_endpoint
from polar.engines.base import ChatEngine, ChatPrompt, GenerateRequest, Scorer, TextEngine, TextPiece
from polar.engines.endpoint import engine as endpoint_engine
from polar.engines.endpoint.engine import EndpointEngine, EndpointOptions
from polar.errors import ChatRefused, ConfigError, ContextOverflow, EngineBusy, EngineError, SchemaRefused
from polar.types import EndpointUsage, Image, Message, Sampling, Tool, ToolCall, token_ids

LOOK = Tool(name="look", description="Looks.", parameters={"type": "object", "properties": {"path": {}}})
ASK = (Message(role="user", content="What is there?"),)
Connect = Callable[..., Awaitable[tuple[EndpointEngine, FakeEndpoint]]]


@pytest.fixture(params=["openai", "anthropic"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def connected(api: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Connect]:
    """A started engine and the endpoint behind it."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(endpoint_engine, "FIRST_PAUSE_S", 0.001)
    async with AsyncExitStack() as stack:

        async def connect(answers: Answers, **options: Any) -> tuple[EndpointEngine, FakeEndpoint]:
            fake = await stack.enter_async_context(fake_endpoint(answers))
            engine = EndpointEngine(EndpointOptions.model_validate(fake.options(api, **options)))
            stack.push_async_callback(engine.stop)
            await engine.start()
            return engine, fake

        yield connect


def talk(messages: tuple[Message, ...] = ASK, **more: Any) -> ChatPrompt:
    sampling = Sampling(**more.pop("sampling", {}))
    return ChatPrompt(messages, more.pop("tools", ()), sampling, more.pop("stop", ()), "s", **more)


async def said(engine: EndpointEngine, prompt: ChatPrompt | None = None) -> list[TextPiece]:
    async with aclosing(engine.text(prompt or talk())) as pieces:
        return [piece async for piece in pieces]


def content(pieces: list[TextPiece]) -> str:
    return "".join(delta.content for piece in pieces for delta in piece.deltas)


def tool_calls(pieces: list[TextPiece]) -> list[tuple[str, str]]:
    calls = [delta.tool_call for piece in pieces for delta in piece.deltas if delta.tool_call]
    return [(call.name, call.arguments) for call in calls]


async def test_a_reply_is_streamed_with_the_endpoint_s_own_counts(connected: Connect, api: str) -> None:
    engine, _ = await connected([Answer(text="Two boats.", reasoning="Look there.")])
    pieces = await said(engine)
    assert len(pieces) == 5, "two halves of thinking, two of text, the end"
    assert content(pieces) == "Two boats."
    assert "".join(delta.reasoning for piece in pieces for delta in piece.deltas) == "Look there."
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["stop"]
    reasoning_tokens = 2 if api == "openai" else None
    assert pieces[-1].usage == EndpointUsage(30, 7, 10, reasoning_tokens)
    counters = engine.counters()
    assert (counters["calls"], counters["prompt_tokens"], counters["completion_tokens"]) == (1, 30, 7)


async def test_a_tool_call_comes_whole_and_goes_back_with_its_result(connected: Connect, api: str) -> None:
    engine, fake = await connected([Answer("I look.", calls=(("look", '{"path": "a"}'),)), Answer("Done.")])
    pieces = await said(engine, talk(tools=(LOOK,)))
    assert tool_calls(pieces) == [("look", '{"path": "a"}')] and pieces[-1].finish_reason == "stop"
    history = (
        Message(role="system", content="Be brief."),
        *ASK,
        Message(role="assistant", content="I look.", tool_calls=(ToolCall("look", '{"path": "a"}', "c1"),)),
        Message(role="tool", content="two boats", tool_call_id="c1", is_error=True),
        Message(role="user", content="And?"),
    )
    assert content(await said(engine, talk(history, tools=(LOOK,)))) == "Done."
    sent = fake.bodies[1]
    if api == "openai":
        assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool", "user"]
        assert sent["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"path": "a"}'}
        assert sent["tools"][0]["function"]["name"] == "look"
        return
    assert sent["system"] == "Be brief."
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"path": "a"}},
    ]
    result, more = sent["messages"][2]["content"]
    assert result["tool_use_id"] == "c1" and result["content"] == [{"type": "text", "text": "two boats"}]
    assert result["is_error"] and more == {"type": "text", "text": "And?"}
    assert sent["tools"] == [{"name": "look", "description": "Looks.", "input_schema": LOOK.parameters}]


async def test_only_what_is_set_is_sent(connected: Connect, api: str) -> None:
    engine, fake = await connected([Answer("a"), Answer("b")], body={"service_tier": "flex"}, max_output_tokens=99)
    await said(engine)
    await said(engine, talk(sampling={"temperature": 0.5, "top_k": 4}, stop=("END",), max_tokens=5, seed=3))
    plain, tuned = fake.bodies
    assert not {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "tools"} & plain.keys()
    assert plain["service_tier"] == "flex"
    limit = "max_tokens" if api == "anthropic" else "max_completion_tokens"
    assert (plain[limit], tuned[limit]) == (99, 5)
    assert (tuned["temperature"], tuned["top_k"]) == (0.5, 4)
    assert tuned["stop_sequences" if api == "anthropic" else "stop"] == ["END"]


async def test_images_go_along(connected: Connect, api: str) -> None:
    engine, fake = await connected([Answer("A dot.")])
    picture = Image("data:image/png;base64,aGk=", at=5)
    await said(engine, talk((Message(role="user", content="Look:  What?", images=(picture,)),)))
    parts = fake.bodies[0]["messages"][0]["content"]
    assert len(parts) == 3
    if api == "anthropic":
        assert parts[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    else:
        assert parts[1]["image_url"] == {"url": picture.url}


async def test_a_call_that_the_limit_cuts_is_dropped(connected: Connect) -> None:
    engine, _ = await connected([Answer("Look", calls=(("look", '{"path": "a'),), cut=True)])
    pieces = await said(engine, talk(tools=(LOOK,)))
    assert content(pieces) == "Look" and tool_calls(pieces) == [] and pieces[-1].finish_reason == "length"


async def test_a_wrong_key_is_found_at_the_start_and_appears_nowhere(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "sk-wrong-fedcba9876543210"
    monkeypatch.setenv(KEY_VARIABLE, wrong)
    async with fake_endpoint([]) as fake:
        engine = EndpointEngine(EndpointOptions.model_validate(fake.options(api)))
        with pytest.raises(EngineError, match=r"401.*api_key_env") as caught:
            await engine.start()
    assert wrong not in str(caught.value)


async def test_a_missing_key_and_an_unknown_model_name_the_option(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    async with fake_endpoint([]) as fake:
        with pytest.raises(ConfigError, match=KEY_VARIABLE):
            await EndpointEngine(EndpointOptions.model_validate(fake.options(api))).start()
        monkeypatch.setenv(KEY_VARIABLE, KEY)
        with pytest.raises(EngineError, match=r"404.*gone-1.*`model`"):
            await EndpointEngine(EndpointOptions.model_validate(fake.options(api, model="gone-1"))).start()


async def test_nobody_at_the_address_is_found_at_once(api: str) -> None:
    engine = EndpointEngine(EndpointOptions(url="http://127.0.0.1:9", model="m", api=api))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"no connection.*`url`"):
        await engine.start()


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(status=429, error={"message": "slow down"}, retry_after="0"),
        Answer(status=500, error={"message": "oops"}),
        Answer(status=529, error={"type": "overloaded_error", "message": "Overloaded"}),
        Answer(fails_within={"type": "overloaded_error", "message": "Overloaded"}),
    ],
    ids=["429", "500", "529", "in the stream"],
)
async def test_a_busy_or_failing_endpoint_is_asked_again(connected: Connect, trouble: Answer) -> None:
    engine, fake = await connected([trouble, trouble, Answer("There.")], retry_s=60.0)
    assert content(await said(engine)) == "There."
    assert len(fake.bodies) == 3 and engine.counters()["retries"] == 2


async def test_patience_ends(connected: Connect) -> None:
    busy = Answer(status=429, error={"message": "slow down"}, retry_after="7")
    engine, fake = await connected([busy, Answer(status=503, error={"message": "down"}), Answer(status=502)])
    with pytest.raises(EngineBusy, match="slow down") as caught:
        await said(engine)
    assert caught.value.retry_after_s == 7.0
    with pytest.raises(EngineBusy, match="503"):
        await said(engine)
    with pytest.raises(EngineError, match="502"):
        await said(engine)
    assert len(fake.bodies) == 3


async def test_a_used_up_account_is_not_asked_again(connected: Connect) -> None:
    empty = Answer(status=429, error={"message": "You exceeded your current quota", "code": "insufficient_quota"})
    engine, fake = await connected([empty], retry_s=60.0)
    with pytest.raises(EngineError, match="quota") as caught:
        await said(engine)
    assert not isinstance(caught.value, EngineBusy) and len(fake.bodies) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("This model's maximum context length is 8192 tokens.", ContextOverflow),
        ("prompt is too long: 210000 tokens > 200000 maximum", ContextOverflow),
        ("messages.1: tool_use ids must be unique", ChatRefused),
    ],
)
async def test_a_refused_request_is_the_harness_s_to_hear(connected: Connect, message: str, kind: Any) -> None:
    engine, _ = await connected([Answer(status=400, error={"message": message})])
    with pytest.raises(kind):
        await said(engine)


async def test_a_refused_schema_is_told_apart(connected: Connect, api: str) -> None:
    engine, fake = await connected([Answer(status=400, error={"message": "Invalid schema for response_format"})])
    with pytest.raises(SchemaRefused):
        await said(engine, talk(json_schema={"type": "object"}))
    assert ("response_format" in fake.bodies[0]) == (api == "openai")


@pytest.mark.parametrize(
    "answer", [Answer("Two bo", breaks_off=True), Answer("Two", fails_within={"message": "x"})]
)
async def test_what_breaks_within_a_reply_is_not_asked_again(connected: Connect, answer: Answer) -> None:
    engine, fake = await connected([answer], retry_s=60.0)
    with pytest.raises(EngineError):
        await said(engine)
    assert len(fake.bodies) == 1, "the harness has a part of it already"


async def test_it_offers_no_way_to_token_ids(connected: Connect) -> None:
    engine, _ = await connected([])
    assert isinstance(engine, TextEngine) and not isinstance(engine, ChatEngine | Scorer)
    assert not {"ids", "prompt_ids", "logprobs"} & set(TextPiece.__struct_fields__)
    with pytest.raises(EngineError, match="no token ids"):
        await anext(engine.generate(GenerateRequest(token_ids([1]), 1, Sampling(), (), "s")))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://user:pw@host/v1", "https://host/v1?key=sk-1"])
def test_an_address_with_a_key_or_without_a_scheme_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|key|root"):
        EndpointOptions(url=url, model="m")


@pytest.mark.asyncio(loop_scope="session")
async def test_llama_cpp_s_own_server_is_an_endpoint(server: LlamaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, server.api_key)
    options = {"url": server.address, "model": "any", "api_key_env": KEY_VARIABLE, "limit_field": "max_tokens"}
    engine = EndpointEngine(EndpointOptions.model_validate(options))
    info = await engine.start()
    try:
        pieces = await said(engine, talk(max_tokens=12, seed=1))
        long = talk((Message(role="user", content="boat " * 3000),))
        with pytest.raises(ContextOverflow):
            await said(engine, long)
    finally:
        await engine.stop()
    assert info.logprob_mode == "none" and content(pieces)
    last = pieces[-1]
    assert last.finish_reason in ("stop", "length") and last.usage is not None
    assert last.usage.prompt_tokens and last.usage.completion_tokens
    assert json.loads(json.dumps(engine.counters()))["calls"] == 2
