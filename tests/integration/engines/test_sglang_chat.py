"""The SGLang engine in chat mode, by contract: against a server written from SGLang's shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_sglang_chat import FakeSglangChat
from running_llama import Connect

from contracts.chat_contract import LOOK, ChatContract, talk, whole_reply
from polar.engines.base import EngineInfo
from polar.engines.remote.proof import prove_chat
from polar.engines.sglang.engine import SglangEngine
from polar.errors import EngineDefect
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Message, PolicySpan, ToolCall

Opener = Callable[..., Awaitable[tuple[SglangEngine, EngineInfo]]]


@pytest.fixture
def fake(vocabulary: Vocabulary) -> FakeSglangChat:
    return FakeSglangChat(vocabulary)


@pytest.fixture
def opened(fake: FakeSglangChat, connect: Connect) -> Opener:
    """A started engine in front of the fake server."""

    async def open_engine(**options: Any) -> tuple[SglangEngine, EngineInfo]:
        engine = await connect("sglang", fake.app(), **options)
        return engine, await engine.start()

    return open_engine


class TestSglangChat(ChatContract):
    @pytest.fixture
    async def started(self, opened: Opener) -> tuple[SglangEngine, EngineInfo]:
        return await opened()


async def test_a_reply_is_one_piece(fake: FakeSglangChat, opened: Opener) -> None:
    engine, _ = await opened(chat_template_kwargs={"enable_thinking": True})
    reply = await whole_reply(engine, talk(session_id="a-session", max_tokens=60))
    assert len(reply.pieces) == 1
    assert (reply.reasoning, reply.content.strip()) == ("Hm, the file.\n", "Yes.")
    assert fake.bodies[-1]["stream"] is False
    assert fake.headers[-1]["x-smg-routing-key"] == "a-session"


async def test_two_calls_are_two(opened: Opener) -> None:
    engine, _ = await opened()
    asked = talk(Message(role="user", content="Look into é.txt and b.txt"), tools=(LOOK,), max_tokens=90)
    reply = await whole_reply(engine, asked)
    first, second = '{"path": "é.txt"}', '{"path": "b.txt"}'
    assert reply.calls == [ToolCall("look", first, "call_0"), ToolCall("look", second, "call_1")]


async def test_a_server_that_reports_no_ids_does_not_pass(fake: FakeSglangChat, opened: Opener) -> None:
    fake.reports_ids = False
    engine, _ = await opened()
    with pytest.raises(EngineDefect, match=r"has no `meta_info`.*use 0.5.13 or newer"):
        await prove_chat(engine)


async def test_a_server_that_aborts_says_so(fake: FakeSglangChat, opened: Opener) -> None:
    fake.aborts = True
    engine, _ = await opened()
    reply = await whole_reply(engine, talk(max_tokens=4))
    assert (len(reply.ids), reply.finish_reason) == (4, "aborted")


async def test_a_cancelled_chat_is_aborted(fake: FakeSglangChat, opened: Opener) -> None:
    engine, _ = await opened()
    asked = len(fake.bodies)
    fake.step_s = 1.0
    task = asyncio.create_task(whole_reply(engine, talk(max_tokens=60)))
    while len(fake.bodies) == asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert fake.aborted == [fake.bodies[-1]["rid"]]


async def test_a_refusal_is_not_aborted(fake: FakeSglangChat, opened: Opener) -> None:
    engine, _ = await opened()
    with pytest.raises(Exception, match="begins with its user"):
        await whole_reply(engine, talk(Message(role="assistant", content="Hello.")))
    assert fake.aborted == []


async def test_the_version_at_the_end_is_not_that_of_the_reply(fake: FakeSglangChat, opened: Opener) -> None:
    engine, _ = await opened()
    fake.weight_version = "step-8"
    (reply,) = (await whole_reply(engine, talk())).pieces
    assert (reply.piece.policy_version, reply.piece.policy_spans) == ("", ())


async def test_versions_per_token_become_spans(fake: FakeSglangChat, opened: Opener) -> None:
    engine, _ = await opened()
    fake.weight_version = "step-8"
    fake.weight_versions = [{"version": "step-7", "start": 0, "end": 3}]
    (reply,) = (await whole_reply(engine, talk(max_tokens=3))).pieces
    assert (reply.piece.policy_version, reply.piece.policy_spans) == ("", (PolicySpan("step-7", 0, 3),))
