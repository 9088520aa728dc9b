"""The vLLM engine in chat mode with a real vLLM on the processor, its template and its parsers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from vllm_server import VllmServer, converted, installed

from contracts.chat_contract import LOOK, ChatContract, talk, whole_reply
from polar.engines.base import ChatPrompt, EngineInfo, GenerateRequest, Piece
from polar.engines.remote.proof import prove_chat
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.errors import EngineError
from polar.store.weights import default_weights
from polar.types import Message, Sampling, TokenIds, ToolCall

pytestmark = [pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

CONTEXT_TOKENS = 768
TEMPLATE = ("--chat-template", str(Path(__file__).parents[1] / "chatml.jinja"))
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


async def served(log: Path, *flags: str) -> VllmServer:
    environment = await asyncio.to_thread(installed)
    weights = await asyncio.to_thread(converted, environment, await default_weights())
    return await VllmServer.spawn(environment, weights, log, *TEMPLATE, *flags, context_tokens=CONTEXT_TOKENS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    running = await served(tmp_path_factory.mktemp("vllm") / "vllm.log", "--enable-scale-out", *PARSERS)
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(server: VllmServer) -> AsyncIterator[tuple[VllmEngine, EngineInfo]]:
    engine = VllmEngine(VllmOptions(url=server.url, chat_template_kwargs={"enable_thinking": False}))
    yield engine, await engine.start()
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def thinking(server: VllmServer) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(VllmOptions(url=server.url, chat_template_kwargs={"enable_thinking": True}))
    await engine.start()
    yield engine
    await engine.stop()


def calling_prompt() -> ChatPrompt:
    """A model of this size calls a tool if it did nothing else before."""
    turns: list[Message] = []
    for name in "abcd":
        call = ToolCall("look", json.dumps({"path": f"{name}.txt"}), f"c-{name}")
        turns.append(Message(role="user", content=f"Look into {name}.txt"))
        turns.append(Message(role="assistant", tool_calls=(call,)))
        turns.append(Message(role="tool", content="nothing", tool_call_id=call.call_id))
        turns.append(Message(role="assistant", content="done"))
    turns.append(Message(role="user", content="Look into e.txt"))
    return talk(*turns, tools=(LOOK,), max_tokens=60, temperature=0)


class TestRealVllmChat(ChatContract):
    @pytest.fixture
    def calling(self) -> ChatPrompt:
        return calling_prompt()

    @pytest.fixture
    def refused(self) -> ChatPrompt:
        return talk(Message(role="assistant", content="Hello."), Message(role="user", content="Hi."))

    async def test_the_end_of_turn_is_sampled_with_its_logprob(self, engine: VllmEngine) -> None:
        reply = await whole_reply(engine, talk(max_tokens=None, temperature=0))
        assert reply.finish_reason == "stop"
        assert (await engine.decode(reply.ids)) == reply.content + "<|im_end|>"
        assert -5 < reply.logprobs[-1] < 0

    async def test_a_call_that_the_room_cuts_off_is_none(self, engine: VllmEngine, calling: ChatPrompt) -> None:
        whole = await whole_reply(engine, calling)
        cut = await whole_reply(
            engine, talk(*calling.messages, tools=(LOOK,), max_tokens=len(whole.ids) - 14, temperature=0)
        )
        assert '"arguments": {' in await engine.decode(cut.ids)
        assert (cut.finish_reason, cut.calls) == ("length", [])
        assert cut.ids == whole.ids[: len(cut.ids)]

    async def test_earlier_thinking_reaches_the_template(self, engine: VllmEngine) -> None:
        turns = (
            Message(role="user", content="Say hi."),
            Message(role="assistant", content="Hi.", reasoning="A short one."),
            Message(role="user", content="Again."),
        )
        text = await engine.decode((await whole_reply(engine, talk(*turns, max_tokens=1))).prompt_ids)
        assert "<think>\nA short one.\n</think>\nHi.<|im_end|>" in text

    async def test_closing_the_iterator_stops_the_generation_in_the_server(
        self, engine: VllmEngine, server: VllmServer
    ) -> None:
        pieces = engine.chat(talk(Message(role="user", content="Count: 1, 2, 3,"), max_tokens=700))
        await anext(pieces)
        await pieces.aclose()
        while await running_requests(server):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_reasoning_is_separated(thinking: VllmEngine) -> None:
    await prove_chat(thinking)
    asked = talk(max_tokens=12, temperature=0)
    reply = await whole_reply(thinking, asked)
    assert (await thinking.decode(reply.prompt_ids)).endswith("<|im_start|>assistant\n<think>\n")
    assert await thinking.count(asked) == len(reply.prompt_ids)
    assert (reply.content, reply.reasoning) == ("", await thinking.decode(reply.ids))


async def test_an_update_within_a_reply_is_reported_per_token(server: VllmServer, thinking: VllmEngine) -> None:
    await say_version(server, "step-7")
    asked = talk(Message(role="user", content="Count: 1, 2, 3,"), max_tokens=1)
    prompt_ids = (await whole_reply(thinking, asked)).prompt_ids
    pieces = [piece async for piece in updated(server, thinking, prompt_ids)]
    ids = sum(len(piece.ids) for piece in pieces)
    spans = pieces[-1].policy_spans
    assert [span.version for span in spans] == ["step-7", "step-8"]
    assert (spans[0].start, spans[1].start, spans[1].start + spans[1].length) == (0, spans[0].length, ids)
    assert pieces[-1].policy_version == "step-8"


async def test_a_server_without_parsers_names_the_flags(tmp_path: Path) -> None:
    server = await served(tmp_path / "log")
    engine = VllmEngine(VllmOptions(url=server.url))
    try:
        await engine.start()
        assert (await whole_reply(engine, talk(max_tokens=4))).content
        with pytest.raises(EngineError, match="start it with --enable-auto-tool-choice --tool-call-parser"):
            await prove_chat(engine)
    finally:
        await engine.stop()
        await server.stop()


async def updated(server: VllmServer, engine: VllmEngine, prompt_ids: TokenIds) -> AsyncIterator[Piece]:
    """A reply in whose midst the weights get another version."""
    request = GenerateRequest(prompt_ids, 40, Sampling(temperature=0), (), "updated")
    reported = False
    async for piece in engine.generate(request):
        yield piece
        if not reported:
            await say_version(server, "step-8")
            reported = True


async def say_version(server: VllmServer, name: str) -> None:
    body = {"new_version": name}
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.url + "/update_weight_version", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()


async def running_requests(server: VllmServer) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{"))
